package controller_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/operator"
)

// TestExplore runs the life of a website many times, each time with a fault at another
// moment. By default it runs a sample of the plans. With EXPLORE_BUDGET, for example 10m,
// it runs plans until that time has passed.
func TestExplore(t *testing.T) {
	t.Parallel()
	// A busy machine folds the events of a reconcile, and each reconcile has an external call,
	// so many runs at once would lack the last calls of the runs without faults.
	options := controllertest.Options{Sample: 24, Parallel: 8, ConvergeTimeout: 90 * time.Second}
	if text := os.Getenv("EXPLORE_BUDGET"); text != "" {
		var err error
		if options.Budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("EXPLORE_BUDGET: %v", err)
		}
		options.Sample, options.Parallel = 0, 24
	}
	controllertest.Explore(t, scenario(), options)
}

// TestUpgrade lets a new version take over from a former one under faults, as a rolling update does:
// the new one starts while the former one leads. It must not change what no user has asked for.
// Here both are this version. Put the program of your last release into Former.Command.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := scenario()
	s.Name = "website-upgrade"
	s.Start = start(true)
	s.From = &controllertest.Former{Start: start(true), Beside: true}
	controllertest.Explore(t, s, controllertest.Options{Sample: 8, Parallel: 8, ConvergeTimeout: 90 * time.Second})
}

// start returns the function that runs the operator, with an election if two processes run.
func start(elects bool) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		o := operator.Options{Name: name, Namespace: env.Namespace}
		if elects {
			o.LeaseNamespace = env.Namespace
		}
		op, err := controller.New(cfg, o, cloudDNS{env.Cloud})
		if err != nil {
			return err
		}
		if elects { // the tests wait for the Lease of a killed process
			op.Elector.LeaseDuration, op.Elector.RenewDeadline, op.Elector.RetryPeriod = 3*time.Second, 2*time.Second, 500*time.Millisecond
		}
		return op.Run(ctx)
	}
}

// scenario is the life of a website.
func scenario() controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "website",
		CRDs:  []string{"../config/crd.yaml"},
		Cloud: cloud.Options{ChosenIDs: true},
		Start: start(false),
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, _ kubernetes.Interface, sites *crd.Client[*v1.Website]) error {
				w := &v1.Website{Spec: v1.WebsiteSpec{Image: "blog:1", Host: "blog.example.com", Replicas: 2}}
				w.Name = "blog"
				_, err := sites.Create(ctx, w, metav1.CreateOptions{})
				return err
			}),
			step("another host and image", func(ctx context.Context, _ kubernetes.Interface, sites *crd.Client[*v1.Website]) error {
				_, err := sites.Patch(ctx, "blog", types.MergePatchType, []byte(`{"spec":{"host":"www.example.com","image":"blog:2"}}`), metav1.PatchOptions{})
				return err
			}),
			// No other change, so only the new generation starts the reconcile.
			step("fewer replicas", func(ctx context.Context, _ kubernetes.Interface, sites *crd.Client[*v1.Website]) error {
				_, err := sites.Patch(ctx, "blog", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
				return err
			}),
		},
		Converged: asSpecified,
		Invariants: []controllertest.Invariant{
			{Name: "each DNS record has a website with the finalizer", Check: recordHeld},
		},
	}
}

func step(name string, do func(context.Context, kubernetes.Interface, *crd.Client[*v1.Website]) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		sites, err := crd.New[*v1.Website](cfg, v1.GroupVersion.WithKind("Website"), "websites")
		if err != nil {
			return err
		}
		return do(ctx, kube, sites.Namespace(env.Namespace))
	}}
}

// cloudDNS is a dns.Service whose calls pass through the faults of a plan.
type cloudDNS struct{ *cloud.Cloud }

func (d cloudDNS) Put(ctx context.Context, owner, host string) error {
	tags := map[string]string{"host": host}
	err := d.Update(ctx, owner, tags)
	if errors.Is(err, cloud.ErrNotFound) {
		_, err = d.Create(ctx, cloud.Resource{Name: owner, Tags: tags})
	}
	return err
}

func (d cloudDNS) Delete(ctx context.Context, owner string) error {
	if err := d.Cloud.Delete(ctx, owner); !errors.Is(err, cloud.ErrNotFound) {
		return err
	}
	return nil
}

// asSpecified returns nil if the cluster and the DNS service match the website's spec, or
// nothing is left of a website that is gone.
func asSpecified(s *controllertest.State) error {
	obj := s.Get("websites.web.example.com", "blog")
	records := s.Cloud()
	children := map[string]*unstructured.Unstructured{}
	for _, resource := range []string{"deployments.apps", "services", "configmaps"} {
		children[resource] = s.Get(resource, "blog")
		if (obj == nil) != (children[resource] == nil) {
			return fmt.Errorf("%s: %v, website: %v", resource, children[resource], obj)
		}
	}
	if obj == nil {
		if len(records) > 0 {
			return fmt.Errorf("the website is gone, but there are records %v", records)
		}
		return nil
	}
	var w v1.Website
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &w); err != nil {
		return err
	}
	for resource, child := range children {
		if !metav1.IsControlledBy(child, &w) {
			return fmt.Errorf("%s does not belong to the website", resource)
		}
	}
	replicas, _, _ := unstructured.NestedInt64(children["deployments.apps"].Object, "spec", "replicas")
	host, _, _ := unstructured.NestedString(children["configmaps"].Object, "data", "HOST")
	ready := meta.FindStatusCondition(w.Status.Conditions, "Ready")
	switch {
	case w.DeletionTimestamp != nil:
		return errors.New("the website is being deleted")
	case len(records) != 1 || records[0].Name != string(w.UID) || records[0].Tags["host"] != w.Spec.Host:
		return fmt.Errorf("records = %v, want one of %s", records, w.Spec.Host)
	case int32(replicas) != w.Spec.Replicas || host != w.Spec.Host:
		return fmt.Errorf("%d replicas with host %q, want %+v", replicas, host, w.Spec)
	case ready == nil || ready.Reason != "Progressing" || ready.ObservedGeneration != w.Generation || w.Status.ObservedGeneration != w.Generation:
		// No controller of Deployments runs, so the website does not become Ready.
		return fmt.Errorf("condition Ready of generation %d is %+v", w.Generation, ready)
	}
	return nil
}

// recordHeld is about existing websites: asSpecified finds a record without one.
func recordHeld(s *controllertest.State) error {
	sites := s.Objects("websites.web.example.com")
	for _, record := range s.Cloud() {
		held := len(sites) == 0
		for _, w := range sites {
			for _, f := range w.GetFinalizers() {
				held = held || f == controller.Finalizer && string(w.GetUID()) == record.Name
			}
		}
		if !held {
			return fmt.Errorf("no finalizer guarantees that the record of %s is deleted", record.Name)
		}
	}
	return nil
}
