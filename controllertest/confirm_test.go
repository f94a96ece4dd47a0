package controllertest_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// notes is a copier whose copy differs after a failed attempt.
func notes() *copier {
	return &copier{failed: func(_ context.Context, c *copying) error {
		c.note = map[string]string{"second": "attempt"}
		return nil
	}}
}

// TestConfirm: a failing plan runs again, and the report separates the findings of all runs
// from those of some.
func TestConfirm(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		flaky   bool // the end state differs in the first run only
		events  bool // the copy is created twice in the first run only
		confirm int
		want    []string // parts of the report and the failure
		not     string
	}{
		{name: "default", want: []string{
			"failing:\n  end state of configmaps .metadata.annotations.second: failed in 4 of 4 runs; 1 plans fail like this, the first after ",
			"\nend state: after step", "configmaps/a-copy .metadata.annotations.second: attempt",
		}, not: "flaky"},
		{name: "two more runs", confirm: 2, want: []string{"failed in 3 of 3 runs"}, not: "flaky"},
		{name: "no more runs", confirm: -1, want: []string{"failed in 1 of 1 runs"}, not: "flaky"},
		{name: "a flaky end state", flaky: true, confirm: 2, want: []string{"flaky:\n  end state of configmaps .metadata.annotations.second: failed in 1 of 3 runs", "\nflaky, in 1 of 3 runs: end state: after step"}},
		{name: "flaky events beside an end state", events: true, confirm: 2, want: []string{
			"failing:\n  end state of configmaps .metadata.annotations.second: failed in 3 of 3 runs",
			"\nend state: after step", "\nflaky, in 1 of 3 runs: events: configmaps/a-copy was created 2 times",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			c := copier{failed: func(ctx context.Context, c *copying) error {
				first := n.Add(1) == 1
				if first || !test.flaky {
					c.note = map[string]string{"second": "attempt"}
				}
				if first && test.events {
					if err := c.create(ctx, nil); err != nil {
						return err
					}
					return c.configMaps.Delete(ctx, "a-copy", metav1.DeleteOptions{})
				}
				return nil
			}}
			o := quick(t, dropped)
			o.Confirm = test.confirm
			report := run(t, c.scenario(), o)
			if len(report.Failures) != 1 || report.Plans != 1 || report.Failures[0].Plan != dropped {
				t.Fatalf("%d plans and %d failures: %s", report.Plans, len(report.Failures), report)
			}
			text := report.String() + report.Failures[0].String()
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("the report has no %q:\n%s", want, text)
				}
			}
			if test.not != "" && strings.Contains(text, test.not) {
				t.Errorf("the report has %q:\n%s", test.not, text)
			}
			if !test.flaky {
				return
			}
			n.Store(0)
			if rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, c.scenario(), o) }); !rec.failed {
				t.Error("Explore passes")
			}
		})
	}
}

// TestGroups: plans with the same finding under the same family of faults or at the same operation are
// one failure with the simplest plan, and plans that become equal are listed once.
func TestGroups(t *testing.T) {
	t.Parallel()
	const (
		refused = "403@create configmaps a-copy#1"
		failed  = "500@create configmaps a-copy#1"
		crash   = "crash-before@delete configmaps a-copy#1"
		travel  = "time-travel(configmaps<start)@delete configmaps a-copy#1"
	)
	c := notes()
	c.begin = func(ctx context.Context, c *copying) error {
		_, err := c.configMaps.Get(ctx, "a-copy", metav1.GetOptions{})
		if err == nil {
			_, err = c.configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	o := quick(t, dropped, refused, failed, refused+" + slow@delete configmaps a-copy#1", refused+" + 504@delete configmaps a-copy#1", "slow@create configmaps a-copy#1", crash, travel)
	o.Folder = t.TempDir()
	report := run(t, c.scenario(), o)
	want := []string{
		`end state configmaps/a-copy .metadata.annotations.second ["403@create configmaps a-copy#1" "500@create configmaps a-copy#1" "drop-request@create configmaps a-copy#1"]`,
		`end state configmaps/left existence ["crash-before@delete configmaps a-copy#1" "time-travel(configmaps<start)@delete configmaps a-copy#1"]`,
	}
	var got []string
	for _, f := range report.Failures {
		first := f.Findings[0]
		got = append(got, fmt.Sprintf("%s %s %s %q", first.Oracle, first.Object, first.Field, f.Plans))
		if f.First <= 0 || f.First > report.Duration || f.Plan != f.Plans[0] || !strings.Contains(report.String(), f.Plan) {
			t.Errorf("the first failure of %q came after %v of %v", f.Plans, f.First, report.Duration)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the groups are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if text := report.String(); !strings.Contains(text, "failing:\n  end state of configmaps .metadata.annotations.second: failed in 1 of 1 runs; 3 plans fail like this") || !strings.Contains(text, "8 valid, 7 failing") {
		t.Errorf("the report is %s", text)
	}
	b, err := os.ReadFile(filepath.Join(o.Folder, "copier.json"))
	var back controllertest.Report
	if err != nil || json.Unmarshal(b, &back) != nil || back.String() != report.String() {
		t.Errorf("as JSON the report is %s, %v", b, err)
	}
}

// TestFailureText: the text of a failure lists its other plans, at most ten.
func TestFailureText(t *testing.T) {
	f := controllertest.Failure{Plan: "p0", Findings: []controllertest.Finding{{Oracle: controllertest.Health, Text: "broken"}}}
	for n := range 15 {
		f.Plans = append(f.Plans, fmt.Sprintf("p%d", n))
	}
	if want := "p0\nhealth: broken\nother plans:\n  p1\n  p2\n  p3\n  p4\n  p5\n  p6\n  p7\n  p8\n  p9\n"; f.String() != want {
		t.Errorf("the text is\n%s\nwant\n%s", f, want)
	}
	f.Plans = f.Plans[:1]
	if want := "p0\nhealth: broken\n"; f.String() != want {
		t.Errorf("the text is\n%s\nwant\n%s", f, want)
	}
}

// TestAccept: an accepted finding fails no plan, and its reason is in the report.
func TestAccept(t *testing.T) {
	t.Parallel()
	const refused = "403@create configmaps a-copy#1"
	s := notes().scenario()
	s.Accept = func(f controllertest.Finding, plan string) string {
		if f.Oracle == controllertest.EndState && f.Object == "configmaps/a-copy" && f.Field == ".metadata.annotations.second" && plan == dropped {
			return "the note is for people"
		}
		return ""
	}
	report := run(t, s, quick(t, dropped, refused))
	if len(report.Failures) != 1 || report.Failures[0].Plan != refused || report.Valid != 2 {
		t.Errorf("found %v", report.Failures)
	}
	if text := report.String(); !strings.Contains(text, "accepted in 1 plans: the note is for people\n") || !strings.Contains(text, "2 valid, 1 failing") {
		t.Errorf("the report is %s", text)
	}
}

// TestReplays: the variable of a failure takes a number of runs.
func TestReplays(t *testing.T) {
	testserver.Needed(t)
	var n atomic.Int64
	c := copier{failed: func(_ context.Context, c *copying) error {
		if n.Add(1)%2 == 0 {
			c.note = map[string]string{"second": "attempt"}
		}
		return nil
	}}
	t.Setenv("CONTROLLERTEST_REPLAY", "copier: "+dropped+" x6")
	rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, c.scenario(), quick(t)) })
	if !rec.failed || !strings.Contains(rec.errors(), "failed in 3 of 6 runs") || !strings.Contains(rec.logs(), dropped+": 3 of 6 runs failed") {
		t.Errorf("Explore reports %q and logs %q", rec.errors(), rec.logs())
	}
	passes := copier{}
	rec = record(t, func(tb testing.TB) { controllertest.Explore(tb, passes.scenario(), quick(t)) })
	if rec.failed || !strings.Contains(rec.logs(), dropped+": 0 of 6 runs failed") {
		t.Errorf("Explore reports %q and logs %q", rec.errors(), rec.logs())
	}
	for _, bad := range []string{" x0", " xx", " x-1", " x1000000"} {
		t.Setenv("CONTROLLERTEST_REPLAY", "copier: "+dropped+bad)
		began := time.Now()
		rec = record(t, func(tb testing.TB) { controllertest.Explore(tb, passes.scenario(), quick(t)) })
		if !rec.failed || !strings.Contains(rec.errors(), "is no number of runs: write x1 to x10000 after the plan") {
			t.Errorf("%q after %v: Explore reports %q", bad, time.Since(began), rec.errors())
		}
	}
}

// TestFaultThatDidNotHappen: a plan whose fault did not happen runs again, up to twice. The
// operation of both plans is in every third run only.
func TestFaultThatDidNotHappen(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	c := copier{begin: func(ctx context.Context, c *copying) error {
		if runs.Add(1)%3 == 0 {
			_, _ = c.configMaps.Get(ctx, "probe", metav1.GetOptions{}) // its outcome changes nothing
		}
		return nil
	}}
	o := quick(t, "slow@get configmaps probe#1", "504@get configmaps probe#1")
	o.Parallel = 1
	if report := run(t, c.scenario(), o); report.Plans != 2 || report.Valid != 2 {
		t.Errorf("%d plans, and the faults of %d happened: want 2 of 2\n%s", report.Plans, report.Valid, report)
	}
}

func TestSampleOfOne(t *testing.T) {
	t.Parallel()
	c := copier{}
	o := quick(t)
	o.Sample = 1
	if report := run(t, c.scenario(), o); report.Plans != 1 || report.Complete {
		t.Errorf("%d plans, complete: %t; want 1 of several\n%s", report.Plans, report.Complete, report)
	}
}

// silentQueue becomes empty without an event, as when the last call of a key writes nothing.
type silentQueue struct{ looks atomic.Int64 }

func (q *silentQueue) Len() int {
	if q.looks.Add(1) <= 3 {
		return 1
	}
	return 0
}

// TestSilentQueue proves X1.
func TestSilentQueue(t *testing.T) {
	t.Parallel()
	c := copier{begin: func(_ context.Context, c *copying) error {
		c.env.Queue(&silentQueue{})
		return nil
	}}
	if report := run(t, c.scenario(), quick(t, dropped)); len(report.Failures) != 0 || report.Valid != 1 {
		t.Errorf("a controller is blamed whose queue became empty: %s", report)
	}
}

// skipper records that a test was skipped.
type skipper struct {
	testing.TB
	why string
}

func (s *skipper) Helper() {}
func (s *skipper) Skip(args ...any) {
	s.why = fmt.Sprint(args...)
	runtime.Goexit()
}

// TestExploreShort: with -short Explore skips before it looks at the scenario or starts a server.
func TestExploreShort(t *testing.T) {
	before := flag.Lookup("test.short").Value.String()
	if err := flag.Set("test.short", "true"); err != nil {
		t.Fatal(err)
	}
	s, done := &skipper{TB: t}, make(chan struct{})
	go func() {
		defer close(done)
		controllertest.Explore(s, controllertest.Scenario{Name: "short"}, controllertest.Options{})
	}()
	<-done
	if err := flag.Set("test.short", before); err != nil {
		t.Fatal(err)
	}
	if s.why != "controllertest: -short leaves out explorations" {
		t.Errorf("Explore skips for %q", s.why)
	}
}
