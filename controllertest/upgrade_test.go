package controllertest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

var (
	upgradePlans  = flag.Int("upgrade-plans", 5, "`number` of plans of TestUpgrade; 0 means all")
	upgradeBudget = flag.Duration("upgrade-budget", 0, "`time` for TestUpgrade, for each upgrade; 0 means one fault a plan and no limit")
)

// A shop is a version of a controller. Each ServiceAccount gets a ConfigMap, a Service and a bucket.
type shop struct {
	text, suffix, app, bucket string
	finalizer, elects         bool
	stops                     bool // after its first reconcile
}

func (s shop) start(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	o := operator.Options{Name: "shop", Namespace: env.Namespace}
	if s.elects {
		o.LeaseNamespace = env.Namespace
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	op, err := operator.New(cfg, o)
	if err != nil {
		return err
	}
	op.Events = nil
	if op.Elector != nil { // a process that is killed tries to release the Lease until RenewDeadline
		op.Elector.LeaseDuration, op.Elector.RenewDeadline, op.Elector.RetryPeriod = 3*time.Second, 2*time.Second, 500*time.Millisecond
	}
	var c *operator.Controller
	r := operator.Reconciler[*corev1.ServiceAccount]{ReadOnly: true, Prune: true, Reconcile: func(ctx context.Context, p *corev1.ServiceAccount) (reconcile.Result, error) {
		labels := map[string]string{"app": s.app + p.Name}
		if _, err := c.Apply(ctx,
			applycorev1.ConfigMap(p.Name+s.suffix, p.Namespace).WithData(map[string]string{"text": s.text, "size": p.Labels["size"]}),
			applycorev1.Service(p.Name, p.Namespace).WithSpec(applycorev1.ServiceSpec().WithClusterIP("None").WithSelector(labels)),
		); err != nil {
			return reconcile.Result{}, err
		}
		name := s.bucket + p.Name
		buckets, err := env.Cloud.List(ctx, name)
		if err == nil && len(buckets) == 0 {
			_, err = env.Cloud.Create(ctx, cloud.Resource{Name: name})
		}
		if s.stops && err == nil {
			stop()
		}
		return reconcile.Result{}, err
	}}
	if s.finalizer {
		r.Finalizer, r.Cleanup = "shop.example.com/bucket", func(context.Context, *corev1.ServiceAccount) error { return nil }
	}
	c = operator.Kind(op, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), r)
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("services"), applycorev1.ExtractService)
	err = op.Run(running)
	if s.stops && err == nil {
		<-ctx.Done()
	}
	return err
}

// upgrade is the scenario of an upgrade.
func upgrade(from, to shop) controllertest.Scenario {
	accounts := func(cfg *rest.Config, env *controllertest.Env) interface {
		Create(context.Context, *corev1.ServiceAccount, metav1.CreateOptions) (*corev1.ServiceAccount, error)
		Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.ServiceAccount, error)
	} {
		return kubernetes.NewForConfigOrDie(cfg).CoreV1().ServiceAccounts(env.Namespace)
	}
	return controllertest.Scenario{
		Start: to.start, From: &controllertest.Former{Start: from.start},
		Cloud: cloud.Options{Idempotent: true, ChosenIDs: true},
		Script: []controllertest.Step{
			{Name: "create", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				_, err := accounts(cfg, env).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"size": "small"}}}, metav1.CreateOptions{})
				return err
			}},
			{Name: "grow", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				_, err := accounts(cfg, env).Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"size":"large"}}}`), metav1.PatchOptions{})
				return err
			}},
		},
		Converged: func(s *controllertest.State) error {
			a := s.Get("serviceaccounts", "a")
			maps, services, buckets := s.Objects("configmaps"), s.Objects("services"), s.Cloud()
			maps = slices.DeleteFunc(maps, func(o *unstructured.Unstructured) bool { return o.GetName() == "kube-root-ca.crt" })
			switch {
			case a == nil:
				return nil // the garbage collector deletes the rest
			case len(maps) == 0 || len(services) != 1 || len(buckets) == 0:
				return fmt.Errorf("%d ConfigMaps, %d Services, %d buckets", len(maps), len(services), len(buckets))
			}
			data, _ := maps[0].Object["data"].(map[string]any)
			if size := a.GetLabels()["size"]; data["size"] != size {
				return errors.New("the ConfigMap has an old size")
			}
			return nil
		},
	}
}

// TestUpgrade finds what a new version changes although no user asks for it. Proves X7.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	now := shop{text: "hello", app: "shop-", bucket: "bucket-"}
	for name, tt := range map[string]struct {
		change func(to *shop)
		want   []string // objects and fields
		beside bool
	}{
		"nothing":               {change: func(*shop) {}},
		"a new default":         {change: func(to *shop) { to.text = "welcome" }, want: []string{"configmaps/a .data.text"}},
		"a renamed child":       {change: func(to *shop) { to.suffix = "-data" }, want: []string{"configmaps/a deleted", "configmaps/a-data created"}},
		"a changed selector":    {change: func(to *shop) { to.app = "store-" }, want: []string{"services/a .spec.selector.app"}},
		"a new finalizer":       {change: func(to *shop) { to.finalizer = true }, want: []string{"serviceaccounts/a .metadata.finalizers"}},
		"an external name":      {change: func(to *shop) { to.bucket = "b-" }, want: []string{"cloud/b-a existence"}},
		"beside: nothing":       {beside: true, change: func(*shop) {}},
		"beside: a new default": {beside: true, change: func(to *shop) { to.text = "welcome" }, want: []string{"configmaps/a .data.text"}},
	} {
		t.Run(name, func(t *testing.T) { // one after another: each explores in parallel
			from := now
			from.elects = tt.beside
			to := from
			tt.change(&to)
			s := upgrade(from, to)
			s.From.Beside = tt.beside
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute+*upgradeBudget)
			defer cancel()
			began := time.Now()
			report, err := controllertest.Run(ctx, s, controllertest.Options{Config: testserver.Config(t), Sample: *upgradePlans, Budget: *upgradeBudget, Parallel: 8})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range report.Failures {
				for _, finding := range f.Findings {
					if finding.Oracle != controllertest.Upgrade {
						t.Errorf("%s: %s", finding.Oracle, finding.Text)
						continue
					}
					got = append(got, strings.TrimSpace(finding.Object+" "+finding.Field))
				}
			}
			slices.Sort(got)
			if got = slices.Compact(got); !slices.Equal(got, tt.want) {
				t.Errorf("findings %q, want %q\n%v", got, tt.want, report.Failures)
			}
			t.Logf("%d plans, %d valid, %v", report.Plans, report.Valid, time.Since(began))
			if tt.want == nil && report.Valid < report.Plans*8/10 {
				t.Errorf("%d of %d plans are valid", report.Valid, report.Plans)
			}
		})
	}
}

// TestFormerHasNoDrift holds that only objects of the new version are changed: this former version would restore
// them only after a restart. Proves X1.
func TestFormerHasNoDrift(t *testing.T) {
	t.Parallel()
	now := shop{text: "hello", app: "shop-", bucket: "bucket-"}
	from := now
	from.stops = true
	report, err := controllertest.Run(t.Context(), upgrade(from, now), controllertest.Options{
		Config: testserver.Config(t), Parallel: 8, Faults: []controllertest.Kind{controllertest.DriftDelete},
	})
	if err != nil {
		t.Fatal(err)
	}
	// There are a ConfigMap and a Service, after the takeover and after the step "grow".
	if report.Plans < 4 || report.Valid != report.Plans || len(report.Failures) > 0 {
		t.Errorf("%d of %d plans are valid, want all of at least 4\n%s", report.Valid, report.Plans, report)
	}
}

// TestFormer has scenarios whose From is not valid.
func TestFormer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		from controllertest.Former
		want string
	}{
		{controllertest.Former{}, "Scenario.From needs one of Start and Command"},
		{controllertest.Former{Start: shop{}.start, Command: func(controllertest.Process) (*exec.Cmd, error) { return nil, nil }}, "Scenario.From needs one of Start and Command"},
		{controllertest.Former{Start: shop{}.start, Steps: 3}, "Scenario.From.Steps is 3, and the script has 2 steps"},
		{controllertest.Former{Start: shop{}.start, Steps: -1}, "Scenario.From.Steps is -1"},
	} {
		s := upgrade(shop{}, shop{})
		s.From = &tt.from
		if _, err := controllertest.Run(t.Context(), s, controllertest.Options{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}
