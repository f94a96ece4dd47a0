package compact_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/compact"
)

// pod returns a Pod of one container as a cluster has it.
func pod(i int) *corev1.Pod {
	now := metav1.NewTime(time.Unix(1_700_000_000, 0))
	mount := corev1.VolumeMount{Name: "kube-api-access", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("web-7d4b9c6f5d-%05d", i), Namespace: fmt.Sprintf("team-%d", i%10), UID: "0c5f9f3e-5c1d-4c11-9d2e-6b3a3c1f0a77", ResourceVersion: fmt.Sprint(1000 + i),
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
				Ports:                  []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
				Resources:              corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")}, Limits: corev1.ResourceList{"memory": resource.MustParse("256Mi")}},
				VolumeMounts:           []corev1.VolumeMount{mount},
				ReadinessProbe:         &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http"), Scheme: "HTTP"}}, TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3},
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File", ImagePullPolicy: "IfNotPresent",
			}},
			RestartPolicy: "Always", TerminationGracePeriodSeconds: new(int64(30)), DNSPolicy: "ClusterFirst", ServiceAccountName: "default", NodeName: fmt.Sprint("node-", i%50),
			SecurityContext: &corev1.PodSecurityContext{}, SchedulerName: "default-scheduler", Priority: new(int32(0)), EnableServiceLinks: new(true),
			Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))}, {Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))}},
		},
		Status: corev1.PodStatus{
			Phase: "Running", HostIP: "10.0.0.1", PodIP: "10.1.0.1", PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}}, StartTime: &now, QOSClass: "Burstable",
			Conditions:        []corev1.PodCondition{{Type: "Initialized", Status: "True", LastTransitionTime: now}, {Type: "Ready", Status: "True", LastTransitionTime: now}, {Type: "ContainersReady", Status: "True", LastTransitionTime: now}, {Type: "PodScheduled", Status: "True", LastTransitionTime: now}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true, Started: new(true), Image: "registry.example.com/web:1.2.3", ImageID: "registry.example.com/web@sha256:0123456789abcdef0123456789abcdef", ContainerID: "containerd://0123456789abcdef0123456789abcdef", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}},
		},
	}
}

func podInformer(t testing.TB, n int) *compact.Informer[*corev1.Pod] {
	t.Helper()
	client := fake.NewClientset()
	for i := range n {
		if err := client.Tracker().Add(pod(i)); err != nil {
			t.Fatal(err)
		}
	}
	pods := client.CoreV1().Pods("")
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{ListWithContextFunc: lists(pods.List), WatchFuncWithContext: pods.Watch}, client)
	inf := made(compact.Over[*corev1.Pod](lw, compact.Options{}))(t)
	start(t, inf)
	return inf
}

// BenchmarkRead compares reads of an object with a deep copy, which is what a read of a typed cache
// by controller-runtime's client costs.
func BenchmarkRead(b *testing.B) {
	inf := podInformer(b, 100)
	obj := pod(7)
	typed := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := typed.Add(obj); err != nil {
		b.Fatal(err)
	}
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := inf.Get(obj.Namespace, obj.Name); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			got, _, _ := typed.GetByKey(obj.Namespace + "/" + obj.Name)
			got.(*corev1.Pod).DeepCopy()
		}
	})
	b.Run("header", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h, ok := inf.Header(obj.Namespace, obj.Name)
			if !ok || h.GetResourceVersion() == "" || h.GetUID() == "" || h.GetDeletionTimestamp() != nil {
				b.Fatal("no header")
			}
		}
	})
	b.Run("labels", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h, _ := inf.Header(obj.Namespace, obj.Name)
			if h.GetLabels()["app.kubernetes.io/name"] != "web" {
				b.Fatal("no label")
			}
		}
	})
	b.Run("owner", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h, _ := inf.Header(obj.Namespace, obj.Name)
			if len(h.GetOwnerReferences()) != 1 {
				b.Fatal("no owner")
			}
		}
	})
}
