package suites_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/testserver"

	// Their requirements have the packages that the suites import.
	_ "sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	_ "sigs.k8s.io/controller-runtime/pkg/manager"
)

const (
	crModule   = "sigs.k8s.io/controller-runtime"
	queueTests = "pkg/controller/priorityqueue/priorityqueue_test.go"
	loopTests  = "pkg/internal/controller/controller_test.go"
)

// stops is a file of this repository beside those of controller-runtime.
const stops = "pkg/internal/controller/stop_test.go"

// replaced are the files that give controller-runtime our queue. It cannot import a package below
// an internal folder of ours, so prioritized.go appears below one of its own.
var replaced = map[string]string{
	"pkg/controller/priorityqueue/priorityqueue.go": "testdata/priorityqueue.go",
	"pkg/controller/priorityqueue/sums_test.go":     "testdata/sums_test.go",
	"pkg/internal/prioritized/prioritized.go":       "../prioritized/prioritized.go",
}

// edits are the places of the tests that compare the depth of each priority, or make a queue of
// client-go.
var edits = []edit{
	{queueTests, `metrics.depth["test"]).To(Equal(`, `metrics.depth["test"]).To(depths(`, 31},
	{loopTests, "workqueue.NewTyped[reconcile.Request]()", `priorityqueue.New[reconcile.Request]("")`, 2},
	{loopTests, "workqueue.NewTyped[TestRequest]()", `priorityqueue.New[TestRequest]("")`, 1},
}

// forwarder is the function of queueTests that replaces the clock of controller-runtime's queue.
// All its callers run in a bubble of synctest, whose clock is that of our queue.
const (
	forwarder = "newQueueWithTimeForwarder"
	sleeper   = "{ q, m := newQueue(); return q, m, time.Sleep"
)

// suites are the packages of controller-runtime, with the Go test that runs their specs.
var suites = []struct{ folder, specs string }{
	{"pkg/controller/priorityqueue", "TestControllerWorkqueue"},
	{"pkg/internal/controller", "TestSource"},
}

// The reasons of differences.
const (
	label    = "workqueue_depth has no value of the label priority"
	failures = "workqueue_retries_total counts retries after a failure, and no other delayed adds"
	atDone   = "a key that was added while it ran becomes ready at Done, behind the keys that were ready before, as in client-go's queue"
	ready    = "Len counts ready keys, as in client-go's queue, so not a running key that was added again"
	ticks    = "the test asserts a call of the function tick inside controller-runtime's queue"
	items    = "the test is of the type item inside controller-runtime's queue"
)

// differences are the tests that pass with controller-runtime's queue and fail with ours. at is
// the assertion that fails. rest is the assertion that fails if the depth is compared without
// priorities; "" means that the test then passes.
var differences = map[string]struct{ at, rest, why string }{
	"Controllerworkqueue returns an item as soon as its unlocked":                                                         {"106", "106", atDone},
	"Controllerworkqueue enqueues a locked item":                                                                          {"140", "140", ready},
	"Controllerworkqueue retains the highest priority":                                                                    {"165", "", label},
	"Controllerworkqueue will not decrease the priority":                                                                  {"182", "", label},
	"Controllerworkqueue gets pushed to the front if the priority increases":                                              {"201", "", label},
	"Controllerworkqueue updates metrics correctly when an item with after is re-added with higher priority and no after": {"330", "", label},
	"TestHighPriorityItemsAreReturnedBeforeLowPriorityItemMultipleTimes/after=-1s":                                        {"610", "", label},
	"TestHighPriorityItemsAreReturnedBeforeLowPriorityItemMultipleTimes/after=0s":                                         {"610", "", label},
	"TestHighPriorityItemsAreReturnedBeforeLowPriorityItemMultipleTimes/after=1s":                                         {"610", "616", label + ", and " + failures},
	"TestItemIsOnlyReturnedAfterAfterHasPassed":                                                                           {"704", "704", failures},
	"TestHighPriorityItemThatBecameReadyIsReturnedBeforeLowPriorityItem":                                                  {"730", "730", ticks},
	"TestItemCloneCopiesAllFields":                                                                                        {"1106", "1106", items},
	"TestItemCloneDoesNotShareMemoryWithOriginal":                                                                         {"1130", "1130", items},
}

// TestServerSuites runs both suites with controller-runtime's queue and with ours. The tests
// that differ are those of the table.
func TestServerSuites(t *testing.T) {
	testserver.Needed(t)
	const version = "{{.Version}}"
	if got, want := command(t, "go", "list", "-m", "-f", version, crModule), command(t, "go", "list", "-C", "../..", "-m", "-f", version, crModule); got != want {
		t.Fatalf("go.mod requires %s %s, and that of managerkit %s", crModule, got, want)
	}
	assets := assets(t)
	p := program{module: crModule, source: sourceOf(t, crModule), race: true, files: map[string][]byte{stops: read(t, "testdata/stop_test.go")}}
	for _, s := range suites {
		p.packages = append(p.packages, s.folder)
	}
	theirs := p.build(t)
	maps.Copy(p.files, edited(t, p.source, edits...))
	p.files[queueTests] = replaceBody(t, p.files[queueTests])
	for name, file := range replaced {
		p.files[name] = read(t, file)
	}
	ours := p.build(t)

	var figures strings.Builder
	fmt.Fprintln(&figures, "| package of controller-runtime | tests and specs | pass with its queue | pass with `NewQueue` | pass if the depth is compared without priorities |")
	fmt.Fprintln(&figures, "|---|---|---|---|---|")
	failed := map[string]bool{}
	for _, s := range suites {
		run := func(folder string, env ...string) map[string]outcome {
			return p.run(t, folder, s.folder, s.specs, append(env, assets)...)
		}
		want, got, rest := run(theirs), run(ours), run(ours, "SUMMED=true")
		all := slices.Sorted(maps.Keys(want))
		if others := slices.Sorted(maps.Keys(got)); !slices.Equal(all, others) {
			t.Errorf("%s: the tests are %q, want %q", s.folder, others, all)
		}
		for _, name := range all {
			if want[name].state == "fail" {
				t.Errorf("%s fails with controller-runtime's queue, at line %s", name, want[name].at)
			}
			d := differences[name]
			compare(t, name, want[name], got[name], d.at)
			compare(t, name+", with the depth of all priorities", want[name], rest[name], d.rest)
			if got[name] != want[name] {
				failed[name] = true
			}
		}
		fmt.Fprintf(&figures, "| `%s` | %d | %d | %d | %d |\n", s.folder, count(want, "pass", "fail"), count(want, "pass"), count(got, "pass"), count(rest, "pass"))
	}
	fmt.Fprintln(&figures, "\n| fails with `NewQueue` | because |\n|---|---|")
	for _, name := range slices.Sorted(maps.Keys(differences)) {
		if !failed[name] {
			t.Errorf("%q is in the table of differences, and is the same with both queues", name)
		}
		fmt.Fprintf(&figures, "| %s | %s |\n", name, differences[name].why)
	}
	documented(t, figures.String())
}

// replaceBody gives forwarder the body sleeper.
func replaceBody(t *testing.T, text []byte) []byte {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, "", text, 0)
	must(t, err)
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == forwarder {
			from, to := files.Position(d.Body.Lbrace).Offset, files.Position(d.Body.Rbrace).Offset
			body := sleeper + strings.Repeat("\n", bytes.Count(text[from:to], []byte("\n")))
			return append(append(bytes.Clone(text[:from]), body...), text[to:]...)
		}
	}
	t.Fatalf("%s has no function %s: adapt the edits to this version", queueTests, forwarder)
	return nil
}
