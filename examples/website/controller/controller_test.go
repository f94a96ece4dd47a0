package controller_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/finalizer"
)

// fixture is a Reconciler on fakes, with informers that follow them.
type fixture struct {
	*controller.Reconciler
	t       *testing.T
	kube    *fake.Clientset
	sites   *crdtest.Fake[*v1.Website]
	records records
	events  []string // reasons
}

// records is a dns.Service.
type records struct {
	hosts map[string]string
	err   error // of all calls
}

func (r *records) Put(_ context.Context, owner, host string) error {
	if r.err == nil {
		r.hosts[owner] = host
	}
	return r.err
}

func (r *records) Delete(_ context.Context, owner string) error {
	if r.err == nil {
		delete(r.hosts, owner)
	}
	return r.err
}

// in runs a test in a bubble, in which synctest.Wait means that the caches are current.
func in(t *testing.T, do func(f *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, kube: fake.NewClientset(), records: records{hosts: map[string]string{}}}
		var err error
		f.sites, err = crdtest.NewFake(v1.GroupVersion.WithKind("Website"), "websites", &v1.Website{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blog", UID: "blog-uid"},
			Spec:       v1.WebsiteSpec{Image: "blog:1", Host: "blog.example.com", Replicas: 2},
		})
		if err != nil {
			t.Fatal(err)
		}
		factory := informers.NewSharedInformerFactory(f.kube, 0)
		apps, core := factory.Apps().V1(), factory.Core().V1()
		source := f.sites.Informer(0, nil)
		f.Reconciler = &controller.Reconciler{
			Kube: f.kube, Websites: f.sites.Client, DNS: &f.records,
			Event: func(_ metav1.Object, _, reason, _, _ string, _ ...any) { f.events = append(f.events, reason) },

			Cached: source.Lister(), Deployments: apps.Deployments().Lister(),
			Services: core.Services().Lister(), ConfigMaps: core.ConfigMaps().Lister(),
		}
		ctx, stop := context.WithCancel(t.Context())
		factory.StartWithContext(ctx)
		go source.Informer().RunWithContext(ctx)
		synctest.Wait()
		do(f)
		stop()
		factory.Shutdown()
		synctest.Wait()
	})
}

// reconcile reconciles the website once, and waits until the caches show the writes.
func (f *fixture) reconcile() error {
	_, err := f.Reconcile(f.t.Context(), types.NamespacedName{Namespace: "ns", Name: "blog"})
	synctest.Wait()
	return err
}

func (f *fixture) site() *v1.Website {
	f.t.Helper()
	w, err := f.sites.Namespace("ns").Get(f.t.Context(), "blog", metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return w
}

// writes returns the writes since the last call.
func (f *fixture) writes() (writes []string) {
	for _, action := range slices.Concat(f.sites.Actions(), f.kube.Actions()) {
		if verb := action.GetVerb(); verb != "get" && verb != "list" && verb != "watch" {
			writes = append(writes, strings.TrimSuffix(fmt.Sprintf("%s %s/%s", verb, action.GetResource().Resource, action.GetSubresource()), "/"))
		}
	}
	f.sites.ClearActions()
	f.kube.ClearActions()
	return writes
}

func ready(w *v1.Website) string {
	c := meta.FindStatusCondition(w.Status.Conditions, "Ready")
	if c == nil || c.ObservedGeneration != w.Generation {
		return "unknown"
	}
	return fmt.Sprintf("%s: %s", c.Reason, c.Message)
}

func TestReconcile(t *testing.T) {
	in(t, func(f *fixture) {
		if err := f.reconcile(); err != nil {
			t.Fatal(err)
		}
		want := []string{"patch websites", "update websites/status", "patch configmaps", "patch services", "patch deployments"}
		if diff := cmp.Diff(want, f.writes()); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		if !finalizer.Has(f.site(), controller.Finalizer) || ready(f.site()) != "Progressing: 0 of 2 replicas are ready" {
			t.Errorf("website = %+v, want the finalizer and 0 of 2 replicas", f.site())
		}
		if diff := cmp.Diff(map[string]string{"blog-uid": "blog.example.com"}, f.records.hosts); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		configMap, err := f.kube.CoreV1().ConfigMaps("ns").Get(t.Context(), "blog", metav1.GetOptions{})
		if err != nil || configMap.Data["HOST"] != "blog.example.com" || !metav1.IsControlledBy(configMap, f.site()) {
			t.Errorf("config map = %v, %v, want the host and the owner", configMap, err)
		}

		// All replicas are ready.
		deployments := f.kube.AppsV1().Deployments("ns")
		deployment, err := deployments.Get(t.Context(), "blog", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		deployment.Status.ReadyReplicas = 2
		if _, err := deployments.UpdateStatus(t.Context(), deployment, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.writes()
		for _, want := range [][]string{{"update websites/status"}, nil} { // the second is a no-op
			if err := f.reconcile(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, f.writes()); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		}
		if w := f.site(); w.Status.ReadyReplicas != 2 || !meta.IsStatusConditionTrue(w.Status.Conditions, "Ready") {
			t.Errorf("status = %+v, want Ready", w.Status)
		}
		if diff := cmp.Diff([]string{"Applied", "Applied", "Applied"}, f.events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestReconcileDeletion(t *testing.T) {
	in(t, func(f *fixture) {
		if err := f.reconcile(); err != nil {
			t.Fatal(err)
		}
		if err := f.sites.Namespace("ns").Delete(t.Context(), "blog", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.events = nil
		f.records.err = errors.New("service is down")
		if err := f.reconcile(); !errors.Is(err, f.records.err) || !finalizer.Has(f.site(), controller.Finalizer) {
			t.Errorf("reconcile while the service is down = %v, want its error and the finalizer kept", err)
		}
		f.records.err = nil
		if err := f.reconcile(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.sites.Namespace("ns").Get(t.Context(), "blog", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the website still exists: %v", err)
		}
		if left := slices.Collect(maps.Keys(f.records.hosts)); len(left) > 0 {
			t.Errorf("records of %q are left", left)
		}
		if diff := cmp.Diff([]string{"CleanupFailed", "CleanedUp"}, f.events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if err := f.reconcile(); err != nil { // an absent website is no error
			t.Error(err)
		}
	})
}

func TestReconcileFailures(t *testing.T) {
	t.Run("the service is down", func(t *testing.T) {
		in(t, func(f *fixture) {
			f.records.err = errors.New("service is down")
			if err := f.reconcile(); !errors.Is(err, f.records.err) {
				t.Errorf("reconcile = %v, want the error", err)
			}
			if got := ready(f.site()); got != "Failed: service is down" {
				t.Errorf("Ready is %s, want the error", got)
			}
			if _, err := f.kube.AppsV1().Deployments("ns").Get(t.Context(), "blog", metav1.GetOptions{}); err != nil {
				t.Errorf("the failure blocks the Deployment: %v", err)
			}
		})
	})
	t.Run("an object of another owner", func(t *testing.T) {
		in(t, func(f *fixture) {
			theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blog"}, Spec: corev1.ServiceSpec{ClusterIP: "None"}}
			if _, err := f.kube.CoreV1().Services("ns").Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := f.reconcile(); err == nil || !strings.Contains(ready(f.site()), "does not belong to this website") {
				t.Errorf("reconcile = %v, Ready is %s, want the name of the object in both", err, ready(f.site()))
			}
			after, err := f.kube.CoreV1().Services("ns").Get(t.Context(), "blog", metav1.GetOptions{})
			if err != nil || len(after.OwnerReferences) > 0 || len(after.Spec.Ports) > 0 {
				t.Errorf("the service is now %v, %v, want it untouched", after, err)
			}
		})
	})
}
