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

// attempts is how often a spec must fail to count as failed. Some specs of the controller, with any
// queue, assert at once what a worker does after the call that they have seen, or that a source
// starts within a millisecond.
const attempts = 5

// outcome is the outcome of a test or a spec. at is the line of the last failed assertion.
type outcome struct{ state, at string }

// count returns how many outcomes have one of the states.
func count(outcomes map[string]outcome, states ...string) (n int) {
	for _, o := range outcomes {
		if slices.Contains(states, o.state) {
			n++
		}
	}
	return n
}

// documented fails the test if the guide lacks the tables.
func documented(t *testing.T, tables string) {
	t.Helper()
	const page = "docs/in-your-manager.md"
	if !strings.Contains(string(read(t, filepath.Join("..", "..", "..", page))), tables) {
		t.Errorf("%s lacks these tables:\n%s", page, tables)
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

// run runs the tests of a package of the program that was built into a folder. It returns the
// outcomes of its tests without subtests, and of the specs of the test specs.
func (p program) run(t *testing.T, out, name, specs string, env ...string) map[string]outcome {
	t.Helper()
	binary, report := filepath.Join(out, path.Base(name)+".test"), filepath.Join(t.TempDir(), "report.json")
	args := []string{"-test.v=test2json", "-test.timeout=30m", "-ginkgo.no-color", fmt.Sprintf("-ginkgo.flake-attempts=%d", attempts), "-ginkgo.json-report=" + report}
	if p.racy != "" {
		args = append(args, "-ginkgo.skip="+p.racy)
	}
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the suite then stops its API server
	cmd.Dir = filepath.Join(p.source, filepath.FromSlash(name))
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
