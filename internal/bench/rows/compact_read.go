package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	runtimecache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

const (
	readObjects = 100
	readReads   = 100_000
)

func init() {
	const pods, metadata = "Pod", "metadata of a Pod"
	bench.Register(bench.Row{
		Name: "compact/read",
		About: fmt.Sprintf("A read of one of %d objects in a cache: a Pod of one container as a cluster has it, its resourceVersion, deletionTimestamp and controller owner, or a custom resource of 2 KiB. "+
			"The library decodes the object, or with Header the metadata. The rival is the Get of controller-runtime's client with its cache, which copies the object.", readObjects),
		Op: "read",
		Goals: []bench.Goal{
			{Figure: bench.Time, Case: pods, Rival: controllerRuntime, AtMost: 1.6},
			{Figure: bench.Time, Case: metadata, Rival: controllerRuntime, AtMost: 0.1},
		},
		Pairs: func(context.Context) ([]bench.Pair, func(), error) {
			podList, gadgetList := &corev1.PodList{}, &contender.GadgetList{}
			podList.ResourceVersion, gadgetList.ResourceVersion = "1", "1"
			for i := range readObjects {
				podList.Items = append(podList.Items, *readPod(i))
				g := processGadget(i)
				g.Namespace, g.UID, g.ResourceVersion = readNamespace, types.UID(fmt.Sprint("uid-", i)), "1"
				gadgetList.Items = append(gadgetList.Items, *g)
			}
			podName := func(i int) string { return podList.Items[i].Name }
			gadgetName := func(i int) string { return gadgetList.Items[i].Name }
			pair := func(name string, ours, theirs func(context.Context, *bench.Meter) (int, error)) bench.Pair {
				return bench.Pair{
					Case: name, Ours: bench.Contender{Name: "compact", Run: ours},
					Theirs: bench.Contender{Name: controllerRuntime, Module: controllerModule, Run: theirs},
				}
			}
			all := func(client.Object) error { return nil }
			return []bench.Pair{
				pair(pods, compactReads[*corev1.Pod](podList, podName, getOne), runtimeReads(podList, podName, newPod, all)),
				pair(metadata, compactReads[*corev1.Pod](podList, podName, getHeader), runtimeReads(podList, podName, newPod, func(obj client.Object) error { return readMetadata(obj) })),
				pair("custom resource", compactReads[*contender.Gadget](gadgetList, gadgetName, getOne), runtimeReads(gadgetList, gadgetName, newGadget, all)),
			}, nil, nil
		},
	})
}

const readNamespace = "default"

func newPod() client.Object { return &corev1.Pod{} }

func newGadget() client.Object { return &contender.Gadget{} }

// unchanging is a ListerWatcher of objects that do not change.
type unchanging struct{ cache.ListerWatcher }

// IsWatchListSemanticsUnSupported lets a reflector call List.
func (unchanging) IsWatchListSemanticsUnSupported() bool { return true }

func unchangingOf(list runtime.Object) cache.ListerWatcher {
	return unchanging{&cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return list.DeepCopyObject(), nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}}
}

// metadataOf has the methods of the metadata that the row reads.
type metadataOf interface {
	GetResourceVersion() string
	GetDeletionTimestamp() *metav1.Time
	GetOwnerReferences() []metav1.OwnerReference
}

// readMetadata reads the metadata of a row's object.
func readMetadata(of metadataOf) error {
	if of.GetResourceVersion() == "" || of.GetDeletionTimestamp() != nil {
		return errors.New("the object has no version, or is deleted")
	}
	for _, owner := range of.GetOwnerReferences() {
		if owner.Controller != nil && *owner.Controller {
			return nil
		}
	}
	return errors.New("the object has no controller owner")
}

func getOne[T controllerkit.Object](i *compact.Informer[T], name string) error {
	_, err := i.Get(readNamespace, name)
	return err
}

func getHeader[T controllerkit.Object](i *compact.Informer[T], name string) error {
	h, ok := i.Header(readNamespace, name)
	if !ok {
		return fmt.Errorf("%s is not in the cache", name)
	}
	return readMetadata(h)
}

// compactReads measures reads of the objects of a list.
func compactReads[T controllerkit.Object](list runtime.Object, name func(i int) string, read func(*compact.Informer[T], string) error) func(context.Context, *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (n int, err error) {
		objects, err := compact.Over[T](unchangingOf(list), compact.Options{})
		if err != nil {
			return 0, err
		}
		ctx, cancel := context.WithCancel(logr.NewContext(ctx, logr.Discard()))
		ended := make(chan struct{})
		go func() { defer close(ended); objects.RunWithContext(ctx) }()
		defer func() { cancel(); <-ended }()
		if !cache.WaitFor(ctx, "", objects.HasSyncedChecker()) {
			return 0, context.Cause(ctx)
		}
		return readAll(m, name, func(name string) error { return read(objects, name) })
	}
}

// runtimeReads measures reads by controller-runtime's client. use gets each object.
func runtimeReads(list runtime.Object, name func(i int) string, empty func() client.Object, use func(client.Object) error) func(context.Context, *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (n int, err error) {
		log.SetLogger(logr.Discard()) // otherwise it prints a stack after 30s
		s := runtime.NewScheme()
		if err := scheme.AddToScheme(s); err != nil {
			return 0, err
		}
		contender.AddGadgets(s)
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
		mapper.Add(contender.GadgetKind(), meta.RESTScopeNamespace)
		objects, err := runtimecache.New(&rest.Config{}, runtimecache.Options{
			Scheme: s, Mapper: mapper,
			NewInformer: func(_ cache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
				return cache.NewSharedIndexInformer(unchangingOf(list), obj, resync, indexers)
			},
		})
		if err != nil {
			return 0, err
		}
		reader, err := client.New(&rest.Config{}, client.Options{Scheme: s, Mapper: mapper, Cache: &client.CacheOptions{Reader: objects}})
		if err != nil {
			return 0, err
		}
		ctx, cancel := context.WithCancel(logr.NewContext(ctx, logr.Discard()))
		ended := make(chan error, 1)
		go func() { ended <- objects.Start(ctx) }()
		defer func() { cancel(); err = errors.Join(err, <-ended) }()
		if !objects.WaitForCacheSync(ctx) {
			return 0, context.Cause(ctx)
		}
		get := func(name string) error {
			obj := empty()
			if err := reader.Get(ctx, types.NamespacedName{Namespace: readNamespace, Name: name}, obj); err != nil {
				return err
			}
			return use(obj)
		}
		if err := get(name(0)); err != nil { // it starts the informer
			return 0, err
		}
		return readAll(m, name, get)
	}
}

func readAll(m *bench.Meter, name func(i int) string, read func(name string) error) (n int, err error) {
	names := make([]string, readObjects)
	for i := range names {
		names[i] = name(i)
	}
	n = m.N(readReads)
	m.Measure(func() {
		for i := 0; i < n && err == nil; i++ {
			err = read(names[i%len(names)])
		}
	})
	return n, err
}

// readPod returns a Pod of one container as a cluster has it.
func readPod(i int) *corev1.Pod {
	now := metav1.NewTime(time.Unix(1_700_000_000, 0))
	toleration := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))}
	}
	condition := func(t corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: t, Status: "True", LastTransitionTime: now}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("web-7d4b9c6f5d-%05d", i), Namespace: readNamespace, UID: "0c5f9f3e-5c1d-4c11-9d2e-6b3a3c1f0a77", ResourceVersion: fmt.Sprint(1000 + i),
			Generation: 1, CreationTimestamp: now,
			Labels:          map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "blog", "app.kubernetes.io/managed-by": "operator", "pod-template-hash": "7d4b9c6f5d"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7d4b9c6f5d", UID: "1c5f9f3e-5c1d-4c11-9d2e-6b3a3c1f0a77", Controller: new(true), BlockOwnerDeletion: new(true)}},
		},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(420)), Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: new(int64(3607)), Path: "token"}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			}}}}},
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/web:1.2.3", Args: []string{"--listen=:8080"},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
					Limits:   corev1.ResourceList{"memory": resource.MustParse("256Mi")},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "kube-api-access", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http"), Scheme: "HTTP"}},
					TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3,
				},
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File", ImagePullPolicy: "IfNotPresent",
			}},
			RestartPolicy: "Always", TerminationGracePeriodSeconds: new(int64(30)), DNSPolicy: "ClusterFirst", ServiceAccountName: "default", NodeName: fmt.Sprint("node-", i%50),
			SecurityContext: &corev1.PodSecurityContext{}, SchedulerName: "default-scheduler", Priority: new(int32(0)), EnableServiceLinks: new(true),
			Tolerations: []corev1.Toleration{toleration("node.kubernetes.io/not-ready"), toleration("node.kubernetes.io/unreachable")},
		},
		Status: corev1.PodStatus{
			Phase: "Running", HostIP: "10.0.0.1", PodIP: "10.1.0.1", PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}}, StartTime: &now, QOSClass: "Burstable",
			Conditions: []corev1.PodCondition{condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", Ready: true, Started: new(true), Image: "registry.example.com/web:1.2.3", ImageID: "registry.example.com/web@sha256:0123456789abcdef0123456789abcdef",
				ContainerID: "containerd://0123456789abcdef0123456789abcdef", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			}},
		},
	}
}
