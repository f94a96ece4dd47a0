package enqueue_test

import (
	"context"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// passed is an event of an informer, and the predicates that passed it.
type passed struct {
	version    string
	deleted    bool
	generation int64
	byGen      bool
	byVersion  bool
}

// next waits for an event.
func next(t *testing.T, what string, events <-chan passed) passed {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(time.Minute):
		t.Fatalf("%s: no event after a minute", what)
		return passed{}
	}
}

// watched runs an informer of one resource in a namespace until the test ends.
// It returns the events, each with the results of all predicates.
func watched(t *testing.T, client dynamic.Interface, resource schema.GroupVersionResource, namespace string) <-chan passed {
	t.Helper()
	type object = *unstructured.Unstructured
	informer := dynamicinformer.NewFilteredDynamicInformer(client, resource, namespace, 0, cache.Indexers{}, nil).Informer()
	events := make(chan passed, 100)
	var byGen, byVersion bool
	set := func(b *bool) cache.ResourceEventHandler {
		return cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { *b = true },
			UpdateFunc: func(any, any) { *b = true },
			DeleteFunc: func(any) { *b = true },
		}
	}
	filters := []cache.ResourceEventHandler{
		enqueue.Filter(set(&byGen), enqueue.GenerationChanged[object]),
		enqueue.Filter(set(&byVersion), enqueue.ResourceVersionChanged[object]),
	}
	judge := func(obj any, deleted bool, send func(cache.ResourceEventHandler)) {
		byGen, byVersion = false, false
		for _, f := range filters {
			send(f)
		}
		o := obj.(object)
		events <- passed{o.GetResourceVersion(), deleted, o.GetGeneration(), byGen, byVersion}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			judge(obj, false, func(h cache.ResourceEventHandler) { h.OnAdd(obj, initial) })
		},
		UpdateFunc: func(o, n any) { judge(n, false, func(h cache.ResourceEventHandler) { h.OnUpdate(o, n) }) },
		DeleteFunc: func(obj any) { judge(obj, true, func(h cache.ResourceEventHandler) { h.OnDelete(obj) }) },
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { informer.RunWithContext(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	return events
}

// TestServerGeneration tests the comment of GenerationChanged on a real kube-apiserver:
// which writes change metadata.generation, and which events GenerationChanged and
// ResourceVersionChanged pass.
//
// The name of a failure is the kind, the write and its subresource. If the generation moves
// otherwise than the table says, the API server has changed: correct the table and the comment of
// GenerationChanged. If only a predicate is wrong, the fault is in the package.
//
// It proves EQ2.
func TestServerGeneration(t *testing.T) {
	config := testserver.Config(t)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := testserver.Namespace(t)
	group := namespace + ".example.com" // a definition takes a while to go
	version := func(status bool) map[string]any {
		v := map[string]any{
			"name": "v1", "served": true, "storage": true,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{
				"type": "object", "x-kubernetes-preserve-unknown-fields": true,
			}},
		}
		if status {
			v["subresources"] = map[string]any{"status": map[string]any{}}
		}
		return v
	}
	for plural, kind := range map[string]string{"statuses": "WithStatus", "plains": "Plain"} {
		testserver.InstallCRD(t, map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": plural + "." + group},
			"spec": map[string]any{
				"group": group, "scope": "Namespaced",
				"names":    map[string]any{"plural": plural, "kind": kind},
				"versions": []any{version(kind == "WithStatus")},
			},
		})
	}
	custom := func(kind string) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/v1", "kind": kind, "spec": map[string]any{"a": "1"}}}
	}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	never := *template.Spec.DeepCopy()
	never.RestartPolicy = corev1.RestartPolicyNever
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	owner, err := clientset.CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// Each write is one merge patch and one event.
	type write struct {
		name        string
		patch       string
		subresource string
		moves       bool // the generation
	}
	metadata := []write{
		{name: "label", patch: `{"metadata":{"labels":{"a":"b"}}}`},
		{name: "annotation", patch: `{"metadata":{"annotations":{"a":"b"}}}`},
		{name: "finalizer", patch: `{"metadata":{"finalizers":["example.com/a","example.com/b"]}}`},
		{name: "finalizer of another one goes", patch: `{"metadata":{"finalizers":["example.com/a"]}}`},
		{name: "owner reference", patch: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"` + string(owner.UID) + `"}]}}`},
		{name: "no owner reference", patch: `{"metadata":{"ownerReferences":null}}`},
	}
	for _, tc := range []struct {
		name     string
		resource schema.GroupVersionResource
		object   runtime.Object
		has      bool   // a generation
		moved    string // a write of metadata that moves it, unlike that of other kinds
		writes   []write
	}{
		{
			name: "Deployment", resource: appsv1.SchemeGroupVersion.WithResource("deployments"), has: true, moved: "annotation",
			object: &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}},
			writes: []write{
				{name: "spec", patch: `{"spec":{"replicas":3}}`, moves: true},
				{name: "status", patch: `{"status":{"readyReplicas":2,"replicas":2}}`, subresource: "status"},
				{name: "scale", patch: `{"spec":{"replicas":4}}`, subresource: "scale", moves: true},
			},
		},
		{
			name: "ReplicaSet", resource: appsv1.SchemeGroupVersion.WithResource("replicasets"), has: true,
			object: &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}},
			writes: []write{{name: "spec", patch: `{"spec":{"replicas":3}}`, moves: true}},
		},
		{
			name: "StatefulSet", resource: appsv1.SchemeGroupVersion.WithResource("statefulsets"), has: true,
			object: &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}},
			writes: []write{{name: "spec", patch: `{"spec":{"replicas":3}}`, moves: true}},
		},
		{
			name: "DaemonSet", resource: appsv1.SchemeGroupVersion.WithResource("daemonsets"), has: true,
			object: &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}},
			writes: []write{{name: "spec", patch: `{"spec":{"minReadySeconds":3}}`, moves: true}},
		},
		{
			name: "Job", resource: batchv1.SchemeGroupVersion.WithResource("jobs"), has: true,
			object: &batchv1.Job{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: never}}},
			writes: []write{{name: "spec", patch: `{"spec":{"parallelism":3}}`, moves: true}},
		},
		{
			name: "NetworkPolicy", resource: networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), has: true,
			object: &networkingv1.NetworkPolicy{},
			writes: []write{{name: "spec", patch: `{"spec":{"policyTypes":["Egress"]}}`, moves: true}},
		},
		{
			name: "PodDisruptionBudget", resource: policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), has: true,
			object: &policyv1.PodDisruptionBudget{},
			writes: []write{{name: "spec", patch: `{"spec":{"minAvailable":3}}`, moves: true}},
		},
		{
			name: "Pod", resource: corev1.SchemeGroupVersion.WithResource("pods"), has: true,
			object: &corev1.Pod{Spec: template.Spec},
			writes: []write{
				{name: "spec", patch: `{"spec":{"activeDeadlineSeconds":60}}`, moves: true},
				{name: "status", patch: `{"status":{"phase":"Running"}}`, subresource: "status"},
			},
		},
		{
			name: "custom resource", resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: "statuses"}, has: true,
			object: custom("WithStatus"),
			writes: []write{
				{name: "spec", patch: `{"spec":{"a":"2"}}`, moves: true},
				{name: "status", patch: `{"status":{"a":"2"}}`, subresource: "status"},
			},
		},
		{
			name: "custom resource without status subresource", resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: "plains"}, has: true,
			object: custom("Plain"),
			writes: []write{
				{name: "spec", patch: `{"spec":{"a":"2"}}`, moves: true},
				{name: "status", patch: `{"status":{"a":"2"}}`, moves: true},
			},
		},
		{
			name: "ConfigMap", resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
			object: &corev1.ConfigMap{},
			writes: []write{{name: "data", patch: `{"data":{"a":"b"}}`}},
		},
		{
			name: "Secret", resource: corev1.SchemeGroupVersion.WithResource("secrets"),
			object: &corev1.Secret{},
			writes: []write{{name: "data", patch: `{"stringData":{"a":"b"}}`}},
		},
		{
			name: "Service", resource: corev1.SchemeGroupVersion.WithResource("services"),
			object: &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
			writes: []write{{name: "spec", patch: `{"spec":{"selector":{"a":"b"}}}`}},
		},
		{
			name: "Lease", resource: coordinationv1.SchemeGroupVersion.WithResource("leases"),
			object: &coordinationv1.Lease{},
			writes: []write{{name: "spec", patch: `{"spec":{"holderIdentity":"a"}}`}},
		},
		{
			name: "Role", resource: rbacv1.SchemeGroupVersion.WithResource("roles"),
			object: &rbacv1.Role{},
			writes: []write{{name: "rules", patch: `{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			events := watched(t, client, tc.resource, namespace)
			c := client.Resource(tc.resource).Namespace(namespace)
			generation := int64(0)
			// check waits for the event of a write and compares.
			check := func(name, version string, moves bool) {
				t.Helper()
				e := next(t, name, events)
				for e.version != version { // of other objects in the namespace
					e = next(t, name, events)
				}
				if moved := e.generation != generation; moved != moves {
					t.Errorf("%s: generation %d became %d, want moved: %v", name, generation, e.generation, moves)
				}
				if want := moves || !tc.has; e.byGen != want {
					t.Errorf("%s: passed by GenerationChanged: %v, want %v", name, e.byGen, want)
				}
				if !e.byVersion {
					t.Errorf("%s: held back by ResourceVersionChanged", name)
				}
				generation = e.generation
			}

			obj := &unstructured.Unstructured{}
			if err := scheme.Scheme.Convert(tc.object, obj, nil); err != nil {
				t.Fatal(err)
			}
			obj.SetName("one")
			created, err := c.Create(t.Context(), obj, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			check("creation", created.GetResourceVersion(), tc.has)
			for _, w := range append(tc.writes, metadata...) {
				var sub []string
				if w.subresource != "" {
					sub = []string{w.subresource}
				}
				stored, err := c.Patch(t.Context(), "one", types.MergePatchType, []byte(w.patch), metav1.PatchOptions{}, sub...)
				if err != nil {
					t.Fatalf("%s: %v", w.name, err)
				}
				check(w.name, stored.GetResourceVersion(), w.moves || w.name == tc.moved)
			}

			// A finalizer is left: the deletion first sets deletionTimestamp.
			// Nothing else writes: a Job's default policy would add a finalizer.
			if err := c.Delete(t.Context(), "one", metav1.DeleteOptions{
				GracePeriodSeconds: ptr.To(int64(0)), PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
			}); err != nil {
				t.Fatal(err)
			}
			stored, err := c.Get(t.Context(), "one", metav1.GetOptions{})
			if err != nil || stored.GetDeletionTimestamp() == nil {
				t.Fatalf("deletionTimestamp %v, error %v", stored.GetDeletionTimestamp(), err)
			}
			check("deletionTimestamp", stored.GetResourceVersion(), tc.has)
			if _, err := c.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			e := next(t, "deletion", events)
			for !e.deleted {
				e = next(t, "deletion", events)
			}
			if !e.byGen || !e.byVersion {
				t.Errorf("deletion: passed by GenerationChanged %v, by ResourceVersionChanged %v, want both", e.byGen, e.byVersion)
			}
		})
	}
}
