package suites_test

import (
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// An operator is a module with an operator of others, and suites that start it on an API server.
type operator struct {
	module      string
	controllers string   // the folder of its package controllers
	suites      []string // folders
	specs       string   // the Go test that runs the specs
	racy        string   // a pattern of specs that fail at times as they are, which do not run
	leftOut     string   // a pattern of files that do not compile, and that the suites do not use
	needed      []edit   // for the versions of this module
	adopted     []edit   // the steps of the guide
}

// steps are the two ways to take the queue. Both have the steps status and consistency.
var steps = []struct{ name, file string }{
	{"`NewQueue`", "testdata/queued.go"},
	{"`Complete`", "testdata/completed.go"},
}

const (
	jobSets    = "pkg/controllers/jobset_controller.go"
	jobSetPods = "pkg/controllers/pod_controller.go"
	topology   = "controllers/topology_controller.go"
	streams    = "controllers/super_stream_controller.go"
	kit        = "\"github.com/controllerkit/controllerkit/managerkit\"\n"
)

// operators have their edits as in the diffs of the guide. testdata/adopted.go is beside them.
var operators = []operator{
	{
		module:      "sigs.k8s.io/jobset",
		controllers: "pkg/controllers",
		suites:      []string{"test/integration/controller", "test/integration/webhook"},
		specs:       "TestAPIs",
		needed: []edit{
			// The builder of webhooks of controller-runtime 0.23.
			{"pkg/webhooks/jobset_webhook.go", "(mgr).\n\t\tFor(&jobset.JobSet{})", "(mgr, &jobset.JobSet{})", 1},
			{"pkg/webhooks/pod_mutating_webhook.go", "(mgr).\n\t\tFor(&corev1.Pod{})", "(mgr, &corev1.Pod{})", 1},
			{"pkg/webhooks/*_webhook.go", "\tWithDefaulter(", "\tWithCustomDefaulter(", 2},
			{"pkg/webhooks/*_webhook.go", "\tWithValidator(", "\tWithCustomValidator(", 2},
			// No port 8080.
			{"test/integration/controller/suite_test.go", "\t\tScheme: scheme.Scheme,\n", "\t\tScheme: scheme.Scheme, Metrics: server.Options{BindAddress: \"0\"},\n", 1},
			{"test/integration/controller/suite_test.go", "\t//+kubebuilder:scaffold:imports\n", "\t\"sigs.k8s.io/controller-runtime/pkg/metrics/server\"\n", 1},
		},
		adopted: []edit{
			{"test/integration/controller/suite_test.go", "k8sManager, err := ctrl.NewManager(", "k8sManager, writes, err := controllers.NewManager(", 1},
			{"test/integration/controller/suite_test.go", "\terr = jobSetReconciler.Setup", "\tjobSetReconciler.Writes = writes\n\terr = jobSetReconciler.Setup", 1},
			{"test/integration/controller/suite_test.go", "\terr = podReconciler.Setup", "\tpodReconciler.Writes = writes\n\terr = podReconciler.Setup", 1},
			{"test/integration/webhook/suite_test.go", "mgr, err := ctrl.NewManager(", "mgr, _, err := controllers.NewManager(", 1},

			{jobSets, "\t\"sigs.k8s.io/jobset/pkg/constants\"\n", "\t\"sigs.k8s.io/jobset/pkg/constants\"\n\t" + kit, 1},
			{jobSets, "\tclock  clock.Clock\n", "\tclock  clock.Clock\n\tWrites *managerkit.Writes\n\tjobSets *managerkit.Client[*jobset.JobSet]\n", 1},
			{jobSets, "SetupWithManager(mgr ctrl.Manager) error {\n", "SetupWithManager(mgr ctrl.Manager) (err error) {\n\tif r.jobSets, err = newClient[*jobset.JobSet](mgr, &jobset.JobSet{}); err != nil {\n\t\treturn err\n\t}\n", 1},
			{jobSets, "err := r.Status().Update(ctx, js)", "err := managerkit.UpdateStatus(ctx, r.jobSets, js)", 1},
			{jobSets, "return controllerBuilder.Complete(r)", "return complete(controllerBuilder, r, 1, r.Writes)", 1},

			{jobSetPods, "\t\"sigs.k8s.io/jobset/pkg/constants\"\n", "\t\"sigs.k8s.io/jobset/pkg/constants\"\n\t" + kit, 1},
			{jobSetPods, "\tRecord record.EventRecorder\n", "\tRecord record.EventRecorder\n\tWrites *managerkit.Writes\n\tpods *managerkit.Client[*corev1.Pod]\n", 1},
			{jobSetPods, "SetupWithManager(mgr ctrl.Manager) error {\n", "SetupWithManager(mgr ctrl.Manager) (err error) {\n\tif r.pods, err = newClient[*corev1.Pod](mgr, &corev1.Pod{}); err != nil {\n\t\treturn err\n\t}\n", 1},
			{jobSetPods, "err := r.Status().Update(ctx, &pod)", "err := managerkit.UpdateStatus(ctx, r.pods, &pod)", 1},
			{jobSetPods, "\treturn ctrl.NewControllerManagedBy(mgr).", "\tb := ctrl.NewControllerManagedBy(mgr).", 1},
			{jobSetPods, ".\n\t\tComplete(r)", "\n\treturn complete(b, r, 1, r.Writes)", 1},
		},
	},
	{
		module:      "github.com/rabbitmq/messaging-topology-operator",
		controllers: "controllers",
		suites:      []string{"controllers"},
		specs:       "TestControllers",
		racy:        "recreates the missing object", // they wait for the absence of an object that is created again at once
		leftOut:     "api/*/*_webhook*.go",          // the builder of webhooks of controller-runtime 0.23
		adopted: []edit{
			{"controllers/*_controller_test.go", ", err = ctrl.NewManager(", ", writes, err = controllers.NewManager(", 14},
			{"controllers/*_controller_test.go", " fakeRecorder,\n", " fakeRecorder, Writes: writes,\n", 16},
			{"controllers/suite_test.go", "\tskipNameValidation ", "\twrites *managerkit.Writes; skipNameValidation ", 1},
			{"controllers/suite_test.go", "import (\n", "import (\n\t" + kit, 1},

			{topology, "\t\"sigs.k8s.io/controller-runtime/pkg/controller\"\n", "\t" + kit, 1},
			{topology, "\tMaxConcurrentReconciles int\n", "\tMaxConcurrentReconciles int\n\tWrites *managerkit.Writes\n\tobjects *managerkit.Client[topology.TopologyResource]\n", 1},
			{topology, "SetupWithManager(mgr ctrl.Manager) error {\n", "SetupWithManager(mgr ctrl.Manager) (err error) {\n\tif r.objects, err = newClient[topology.TopologyResource](mgr, r.Type); err != nil {\n\t\treturn err\n\t}\n", 1},
			{topology, "return r.Status().Update(ctx, obj)", "return managerkit.UpdateStatus(ctx, r.objects, obj)", 1},
			{topology, "return r.Status().Update(ctx, object)", "return managerkit.UpdateStatus(ctx, r.objects, object)", 2},
			{topology, "\t\treturn ctrl.NewControllerManagedBy(mgr).", "\t\tb := ctrl.NewControllerManagedBy(mgr).", 1},
			{topology, ".\n\t\t\tWithOptions(controller.Options{MaxConcurrentReconciles: r.MaxConcurrentReconciles}).\n\t\t\tComplete(r)", "\n\t\treturn complete(b, r, r.MaxConcurrentReconciles, r.Writes)", 1},
			{topology, ".\n\t\tWithOptions(controller.Options{MaxConcurrentReconciles: r.MaxConcurrentReconciles})\n", "\n", 1},
			{topology, "return builder.Complete(r)", "return complete(builder, r, r.MaxConcurrentReconciles, r.Writes)", 1},

			{streams, "\t\"sigs.k8s.io/controller-runtime/pkg/controller\"\n", "\t" + kit, 1},
			{streams, "\tMaxConcurrentReconciles int\n", "\tMaxConcurrentReconciles int\n\tWrites *managerkit.Writes\n\tstreams *managerkit.Client[*topologyv1alpha1.SuperStream]\n", 1},
			{streams, "SetupWithManager(mgr ctrl.Manager) error {\n\treturn", "SetupWithManager(mgr ctrl.Manager) (err error) {\n\tif r.streams, err = newClient[*topologyv1alpha1.SuperStream](mgr, &topologyv1alpha1.SuperStream{}); err != nil {\n\t\treturn err\n\t}\n\tb :=", 1},
			{streams, "return r.Status().Update(ctx, superStream)", "return managerkit.UpdateStatus(ctx, r.streams, superStream)", 2},
			{streams, ".\n\t\tWithOptions(controller.Options{MaxConcurrentReconciles: r.MaxConcurrentReconciles}).\n\t\tComplete(r)", "\n\treturn complete(b, r, r.MaxConcurrentReconciles, r.Writes)", 1},
		},
	},
}

// TestServerOperators runs the suites of the operators as they are, and with both steps. No spec differs.
func TestServerOperators(t *testing.T) {
	testserver.Needed(t)
	var figures strings.Builder
	fmt.Fprint(&figures, "| operator | suite | specs | pass as it is |")
	for _, step := range steps {
		fmt.Fprintf(&figures, " pass with %s |", step.name)
	}
	fmt.Fprintln(&figures, "\n|---|---|"+strings.Repeat("---|", 2+len(steps)))
	for _, o := range operators {
		t.Run(path.Base(o.module), func(t *testing.T) { o.run(t, &figures) })
	}
	documented(t, figures.String())
}

// run runs the suites of the operator, and adds their figures.
func (o operator) run(t *testing.T, figures io.Writer) {
	p := program{module: o.module, source: sourceOf(t, o.module), packages: o.suites, racy: o.racy}
	needed, adopted := edited(t, p.source, o.needed...), edited(t, p.source, slices.Concat(o.needed, o.adopted)...)
	if o.leftOut != "" {
		for _, name := range matches(t, p.source, o.leftOut) {
			needed[name], adopted[name] = nil, nil
		}
	}
	adopted[path.Join(o.controllers, "adopted.go")] = read(t, "testdata/adopted.go")
	p.files = needed
	theirs := p.build(t)
	p.files = adopted
	var ours []string
	for _, step := range steps {
		p.files[path.Join(o.controllers, "complete.go")] = read(t, step.file)
		ours = append(ours, p.build(t))
	}
	assets := assets(t)
	programs := append([]string{theirs}, ours...)
	outcomes := make([][]map[string]outcome, len(o.suites))
	t.Run("run", func(t *testing.T) { // in parallel: the specs wait most of the time
		for i, suite := range o.suites {
			outcomes[i] = make([]map[string]outcome, len(programs))
			for j, out := range programs {
				t.Run(fmt.Sprintf("%s-%d", path.Base(suite), j), func(t *testing.T) {
					t.Parallel()
					outcomes[i][j] = p.run(t, out, suite, o.specs, assets)
				})
			}
		}
	})
	for i, suite := range o.suites {
		want := outcomes[i][0]
		all := slices.Sorted(maps.Keys(want))
		for _, name := range all {
			if want[name].state == "fail" {
				t.Errorf("%s fails as it is, at line %s", name, want[name].at)
			}
		}
		fmt.Fprintf(figures, "| %s | `%s` | %d | %d |", command(t, "go", "list", "-m", o.module), suite, count(want, "pass", "fail"), count(want, "pass"))
		for j, step := range steps {
			got := outcomes[i][1+j]
			if others := slices.Sorted(maps.Keys(got)); !slices.Equal(all, others) {
				t.Errorf("%s, %s: the specs are %q, want %q", suite, step.name, others, all)
			}
			for _, name := range all {
				compare(t, step.name+": "+name, want[name], got[name], "")
			}
			fmt.Fprintf(figures, " %d |", count(got, "pass"))
		}
		fmt.Fprintln(figures)
	}
}
