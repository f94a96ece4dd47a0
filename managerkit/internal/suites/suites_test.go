package suites_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

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

// attempts is how often a spec must fail to count as failed. Some specs of the controller, with any
// queue, assert at once what a worker does after the call that they have seen, or that a source
// starts within a millisecond.
const attempts = 5

// outcome is the outcome of a test or a spec. at is the line of the last failed assertion.
type outcome struct{ state, at string }

// TestServerSuites runs both suites with controller-runtime's queue and with ours. The tests
// that differ are those of the table.
func TestServerSuites(t *testing.T) {
	testserver.Needed(t)
	source := command(t, "go", "list", "-m", "-f", "{{.Dir}}", module)
	const version = "{{.Version}}"
	if got, want := command(t, "go", "list", "-m", "-f", version, module), command(t, "go", "list", "-C", "../..", "-m", "-f", version, module); got != want {
		t.Fatalf("go.mod requires %s %s, and that of managerkit %s", module, got, want)
	}
	binary, err := testserver.Binary()
	must(t, err)
	assets := t.TempDir()
	command(t, binary, "-assets", assets)
	var packages []string
	for _, s := range suites {
		packages = append(packages, s.folder)
	}
	theirs, ours := t.TempDir(), t.TempDir()
	build(t, source, theirs, false, packages...)
	build(t, source, ours, true, packages...)

	var figures strings.Builder
	fmt.Fprintln(&figures, "| package of controller-runtime | tests and specs | pass with its queue | pass with `NewQueue` | pass if the depth is compared without priorities |")
	fmt.Fprintln(&figures, "|---|---|---|---|---|")
	failed := map[string]bool{}
	for _, s := range suites {
		run := func(folder string, env ...string) map[string]outcome {
			return run(t, filepath.Join(source, filepath.FromSlash(s.folder)), filepath.Join(folder, path.Base(s.folder)+".test"), s.specs, append(env, "KUBEBUILDER_ASSETS="+assets))
		}
		want, got, rest := run(theirs), run(ours), run(ours, "SUMMED=true")
		all := slices.Sorted(maps.Keys(want))
		if others := slices.Sorted(maps.Keys(got)); !slices.Equal(all, others) {
			t.Errorf("%s: the tests are %q, want %q", s.folder, others, all)
		}
		passed := func(outcomes map[string]outcome) (n int) {
			for _, o := range outcomes {
				if o.state == "pass" {
					n++
				}
			}
			return n
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
		pending := 0
		for _, o := range want {
			if o.state == "skip" {
				pending++
			}
		}
		fmt.Fprintf(&figures, "| `%s` | %d | %d | %d | %d |\n", s.folder, len(want)-pending, passed(want), passed(got), passed(rest))
	}
	fmt.Fprintln(&figures, "\n| fails with `NewQueue` | because |\n|---|---|")
	for _, name := range slices.Sorted(maps.Keys(differences)) {
		if !failed[name] {
			t.Errorf("%q is in the table of differences, and is the same with both queues", name)
		}
		fmt.Fprintf(&figures, "| %s | %s |\n", name, differences[name].why)
	}
	const page = "docs/in-your-manager.md"
	text, err := os.ReadFile(filepath.Join("..", "..", "..", page))
	must(t, err)
	if !strings.Contains(string(text), figures.String()) {
		t.Errorf("%s lacks these tables:\n%s", page, &figures)
	}
}

// compare compares the outcome of a test with ours to that with controller-runtime's queue, which
// is the same unless the test is known to fail at a line.
func compare(t *testing.T, name string, want, got outcome, at string) {
	t.Helper()
	if at != "" {
		want = outcome{"fail", at}
	}
	if got != want {
		t.Errorf("%s: %s at line %q, want %s at %q", name, got.state, got.at, want.state, want.at)
	}
}

// run runs the tests of a package, and returns the outcomes of its tests without subtests, and of
// the specs of the test specs.
func run(t *testing.T, folder, binary, specs string, env []string) map[string]outcome {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.CommandContext(t.Context(), binary, "-test.v=test2json", "-test.timeout=10m", "-ginkgo.no-color", fmt.Sprintf("-ginkgo.flake-attempts=%d", attempts), "-ginkgo.json-report="+report)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the suite then stops its API server
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), append(env, "TMPDIR="+t.TempDir(), "USE_EXISTING_CLUSTER=false", "KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=1m",
		"KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT=1m", "GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT=10s")...)
	log, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	outcomes := ofTests(t, log)
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%s wrote no report: %v\n%s", binary, err, log)
	}
	whole := outcomes[specs].state
	delete(outcomes, specs)
	fails := ofSpecs(t, data, outcomes)
	if whole == "" || (whole == "fail") != fails { // a data race fails the test alone
		t.Fatalf("%s is %q, and a spec fails: %t\n%s", specs, whole, fails, log)
	}
	return outcomes
}

// position is the beginning of a line that a test or Gomega wrote about an assertion.
var position = regexp.MustCompile(`_test\.go:(\d+): `)

// ofTests returns the outcomes in the output of a test binary.
func ofTests(t *testing.T, output []byte) map[string]outcome {
	t.Helper()
	convert := exec.CommandContext(t.Context(), "go", "tool", "test2json")
	convert.Stdin = bytes.NewReader(output)
	events, err := convert.Output()
	must(t, err)
	outcomes := map[string]outcome{}
	lines := map[string]string{} // the last position of each test
	for decoder := json.NewDecoder(bytes.NewReader(events)); ; {
		var event struct{ Action, Test, Output string }
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch event.Action {
		case "output":
			if m := position.FindStringSubmatch(event.Output); m != nil {
				lines[event.Test] = m[1]
			}
		case "pass", "skip":
			outcomes[event.Test] = outcome{state: event.Action}
		case "fail":
			outcomes[event.Test] = outcome{"fail", lines[event.Test]}
		}
	}
	delete(outcomes, "") // of the binary
	for name := range maps.Clone(outcomes) {
		if parent, _, ok := strings.Cut(name, "/"); ok {
			delete(outcomes, parent)
		}
	}
	return outcomes
}

// ofSpecs adds the outcomes in a report of Ginkgo, and reports whether a spec failed, or what the
// suite does before or after them.
func ofSpecs(t *testing.T, report []byte, outcomes map[string]outcome) (failed bool) {
	t.Helper()
	var reports []types.Report
	must(t, json.Unmarshal(report, &reports))
	for _, r := range reports {
		for _, s := range r.SpecReports {
			o := outcome{state: "pass"}
			switch {
			case s.Failed():
				failed = true
				o = outcome{"fail", strconv.Itoa(s.Failure.Location.LineNumber)}
			case s.State != types.SpecStatePassed:
				o.state = "skip"
			case s.NumAttempts > 1:
				t.Logf("%s passes at attempt %d", s.FullText(), s.NumAttempts)
			}
			if s.LeafNodeType == types.NodeTypeIt {
				outcomes[s.FullText()] = o
			}
		}
	}
	return failed
}
