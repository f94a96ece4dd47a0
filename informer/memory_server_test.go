package informer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestServerMemory measures the heap of cached objects as the API server sends them, and
// compares it with the table of docs/memory.md. With -v it prints the table.
func TestServerMemory(t *testing.T) {
	namespace := testserver.Namespace(t)
	client := typedClient(t, testserver.Config(t))
	page, err := os.ReadFile("../docs/memory.md")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	for _, kind := range kinds(t, client, namespace) {
		obj := kind.create(t)
		binary, text := encoded(t, obj)
		typed := func() any { return decoded(t, binary) }
		var cells []int
		for i, column := range []struct {
			decode    func() any
			transform cache.TransformFunc
		}{
			{typed, func(obj any) (any, error) { return obj, nil }},
			{typed, informer.Trim},
			{typed, informer.KeepMetadata(nil)},
			{func() any { return partial(t, text) }, informer.Trim},
			{func() any { return loose(t, text) }, informer.Trim},
			{compacted(t, typed), func(obj any) (any, error) { return obj, nil }},
		} {
			cells = append(cells, perObject(t, column.decode, column.transform))
			obj, err := column.transform(column.decode())
			if err != nil {
				t.Fatal(err)
			}
			if got := informer.Size(obj); math.Abs(float64(got)/float64(cells[i])-1) > 0.15 {
				t.Errorf("%s, column %d: Size() = %d, want %d within 15 %%", kind.name, i+1, got, cells[i])
			}
		}
		_, row, _ := strings.Cut(string(page), "\n| "+kind.name+" |")
		row, _, _ = strings.Cut(row, "\n")
		stated := strings.Split(row, "|")
		fmt.Fprintf(&table, "| %s |", kind.name)
		for i, c := range cells {
			kib := float64(c) / 1024
			fmt.Fprintf(&table, " %.1f |", kib)
			if i >= len(stated) {
				t.Fatalf("docs/memory.md has no row for %s with %d figures", kind.name, len(cells))
			}
			if want, err := strconv.ParseFloat(strings.TrimSpace(stated[i]), 64); err != nil || math.Abs(kib-want) > 0.1+want/5 { // the race detector adds a tenth
				t.Errorf("%s takes %.1f KiB in column %d, the page says %s", kind.name, kib, i+1, stated[i])
			}
		}
		table.WriteByte('\n')
		full, trimmed, stripped, metadata, dynamic, compact := cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]
		if trimmed >= full || stripped > trimmed+trimmed/20 || metadata > stripped+stripped/10 || dynamic <= trimmed || compact >= trimmed {
			t.Errorf("%s: %d bytes, trimmed %d, without data %d, metadata only %d, dynamic %d, compact %d: want each at most the one before, dynamic more than trimmed, and compact less", kind.name, full, trimmed, stripped, metadata, dynamic, compact)
		}
	}
	t.Logf("KiB of an object: whole, Trim, KeepMetadata of none, metadata-only informer with Trim, dynamic informer with Trim, compact informer\n%s", &table)
}

// perObject returns the bytes that an object takes in the heap. It is the median of three
// measurements: what other goroutines of the process allocate or free in one does not count.
func perObject(t *testing.T, decode func() any, transform cache.TransformFunc) int {
	t.Helper()
	const n = 500
	var sizes []int
	for range 3 {
		objects := make([]any, n)
		before := heap()
		for i := range objects {
			var err error
			if objects[i], err = transform(decode()); err != nil {
				t.Fatal(err)
			}
		}
		after := heap()
		runtime.KeepAlive(objects)
		sizes = append(sizes, int(after-before)/n)
	}
	slices.Sort(sizes)
	return sizes[1]
}

func heap() int64 {
	var m runtime.MemStats
	for range 2 { // the second collects what finalizers and pools kept
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func encoded(t *testing.T, obj apiruntime.Object) (binary, text []byte) {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		t.Fatal(err)
	}
	obj.GetObjectKind().SetGroupVersionKind(kinds[0])
	if binary, err = apiruntime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), obj); err != nil {
		t.Fatal(err)
	}
	if text, err = json.Marshal(obj); err != nil {
		t.Fatal(err)
	}
	return binary, text
}

func decoded(t *testing.T, binary []byte) any {
	t.Helper()
	obj, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(binary, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// compacted returns a function that returns what the cache of a compact informer has of an object.
func compacted(t *testing.T, typed func() any) func() any {
	t.Helper()
	obj := typed().(apiruntime.Object)
	store := compact.NewInformer(&cache.ListWatch{}, obj, 0, nil).GetStore()
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		t.Fatal(err)
	}
	return func() any {
		if err := store.Update(typed()); err != nil {
			t.Fatal(err)
		}
		held, _ := headers.Get(store, key)
		return held
	}
}

func partial(t *testing.T, text []byte) any {
	t.Helper()
	obj := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(text, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

func loose(t *testing.T, text []byte) any {
	t.Helper()
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	return obj
}

type kind struct {
	name   string
	create func(t *testing.T) apiruntime.Object // as the API server returns it
}

// made creates obj as one manager, and writes its status, if it has one, as another.
func made[T apiruntime.Object](name string, obj T, create func(context.Context, T, metav1.CreateOptions) (T, error), status func(T), update func(context.Context, T, metav1.UpdateOptions) (T, error)) kind {
	return kind{name, func(t *testing.T) apiruntime.Object {
		t.Helper()
		created, err := create(t.Context(), obj, metav1.CreateOptions{FieldManager: "deployer"})
		if err != nil {
			t.Fatal(err)
		}
		if status == nil {
			return created
		}
		status(created)
		accessor, err := meta.Accessor(created)
		if err != nil {
			t.Fatal(err)
		}
		accessor.SetResourceVersion("") // others may have written meanwhile
		created, err = update(t.Context(), created, metav1.UpdateOptions{FieldManager: "controller"})
		if err != nil {
			t.Fatal(err)
		}
		return created
	}}
}

func kinds(t *testing.T, c kubernetes.Interface, ns string) []kind {
	t.Helper()
	labels := map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web-production", "app.kubernetes.io/managed-by": "deployer", "pod-template-hash": "5d4f8c7b9"}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{"deployment.kubernetes.io/revision": "3"}}
	}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	// The owner exists: the garbage collector deletes the children of any other.
	owner, err := c.AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web-5d4f8c7b9"}, Spec: appsv1.ReplicaSetSpec{
		Selector: selector,
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	child := func(name string) metav1.ObjectMeta {
		m := meta(name)
		m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		return m
	}
	port := intstr.FromInt32(8080)
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: port}}}
	spec := corev1.PodSpec{
		Containers: []corev1.Container{{
			Name: "web", Image: "registry.example.com/web/server:v1.24.3", Args: []string{"--listen=:8080", "--config=/etc/web/config.yaml"},
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			Env:   []corev1.EnvVar{{Name: "LOG_LEVEL", Value: "info"}, {Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
			},
			VolumeMounts:  []corev1.VolumeMount{{Name: "config", MountPath: "/etc/web"}},
			LivenessProbe: probe, ReadinessProbe: probe,
		}},
		Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}}},
	}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}
	condition := func(kind string) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodConditionType(kind), Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}
	}
	pods, deployments, sets, jobs := c.CoreV1().Pods(ns), c.AppsV1().Deployments(ns), c.AppsV1().ReplicaSets(ns), c.BatchV1().Jobs(ns)
	job := template
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	job.Labels = nil
	kib := strings.Repeat("x", 1024)
	return []kind{
		made("Pod", &corev1.Pod{ObjectMeta: child("web"), Spec: spec}, pods.Create, func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{
				Phase: corev1.PodRunning, HostIP: "10.0.3.17", PodIP: "10.244.3.91", PodIPs: []corev1.PodIP{{IP: "10.244.3.91"}}, StartTime: new(metav1.Now()),
				Conditions: []corev1.PodCondition{condition("PodReadyToStartContainers"), condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")},
				ContainerStatuses: []corev1.ContainerStatus{{
					Name: "web", Ready: true, Started: new(true), Image: "registry.example.com/web/server:v1.24.3", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
					ImageID:     "registry.example.com/web/server@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
					ContainerID: "containerd://60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
				}},
			}
		}, pods.UpdateStatus),
		made("Deployment", &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}, deployments.Create, func(d *appsv1.Deployment) {
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1, Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable", Message: "Deployment has minimum availability.", LastUpdateTime: metav1.Now(), LastTransitionTime: metav1.Now()},
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable", Message: `ReplicaSet "web-5d4f8c7b9" has successfully progressed.`, LastUpdateTime: metav1.Now(), LastTransitionTime: metav1.Now()},
			}}
		}, deployments.UpdateStatus),
		made("ReplicaSet", &appsv1.ReplicaSet{ObjectMeta: meta("web-7c9d8e6f5"), Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}, sets.Create, func(s *appsv1.ReplicaSet) {
			s.Status = appsv1.ReplicaSetStatus{ObservedGeneration: 1, Replicas: 1, FullyLabeledReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
		}, sets.UpdateStatus),
		made("Job", &batchv1.Job{ObjectMeta: meta("migrate"), Spec: batchv1.JobSpec{Template: job}}, jobs.Create, func(j *batchv1.Job) {
			j.Status = batchv1.JobStatus{Active: 1, StartTime: new(metav1.Now()), Ready: new(int32(1))}
		}, jobs.UpdateStatus),
		made("Service", &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: port}}}}, c.CoreV1().Services(ns).Create, nil, nil),
		made("EndpointSlice of 10", slice(child("web-abcde")), c.DiscoveryV1().EndpointSlices(ns).Create, nil, nil),
		made("ConfigMap of 1 KiB", &corev1.ConfigMap{ObjectMeta: meta("web"), Data: map[string]string{"config.yaml": kib}}, c.CoreV1().ConfigMaps(ns).Create, nil, nil),
		made("Secret of 1 KiB", &corev1.Secret{ObjectMeta: meta("web"), Data: map[string][]byte{"token": []byte(kib)}}, c.CoreV1().Secrets(ns).Create, nil, nil),
		made("ServiceAccount", &corev1.ServiceAccount{ObjectMeta: meta("web")}, c.CoreV1().ServiceAccounts(ns).Create, nil, nil),
		made("Namespace", &corev1.Namespace{ObjectMeta: meta(ns + "-measured")}, func(ctx context.Context, n *corev1.Namespace, opts metav1.CreateOptions) (*corev1.Namespace, error) {
			t.Cleanup(func() {
				if err := c.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), n.Name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
			return c.CoreV1().Namespaces().Create(ctx, n, opts)
		}, nil, nil),
	}
}

func slice(m metav1.ObjectMeta) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: m, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}}}
	for i := range 10 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.244.3.%d", i)}, Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)}, NodeName: new(fmt.Sprintf("node-%d", i)),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("web-5d4f8c7b9-abcd%d", i), UID: "7f0d3c2e-5a51-4d0e-9b61-0d6d2a4e8f11"},
		})
	}
	return s
}
