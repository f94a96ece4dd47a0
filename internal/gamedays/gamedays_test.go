package gamedays

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	every = flag.Bool("every", false, "run all rows, not only the sample")
	logs  = flag.Bool("logs", false, "print the last lines of all replicas, also after a success")
	soak  = flag.Bool("soak", false, "with -every, also run the rows that need much time")
	write = flag.String("write", "", "write the table to this `file`")
)

// A situation is a row.
type situation struct {
	name   string // of the subtest
	title  string // of the row
	sample bool   // make test runs it
	soak   bool   // needs more time than make gamedays has
	notRun string // why it cannot happen here

	setup setup
	do    func(d *day)                             // lets it happen
	own   func(t *testing.T) (after time.Duration) // in place of do: a row with a world of its own
	skip  func(object) bool

	fires    []string      // alerts that must fire; no other one may
	may      []string      // alerts that may fire as well
	says     [][]string    // parts of lines that the log must have within 10s of the start
	probes   string        // what the probes may say, see probesFit
	restarts int           // of all replicas
	quiet    int           // the log may have this many lines, 0 means 40, and -1 means none
	bound    time.Duration // from the end until all is right, 0 means 10s

	onCall, does, left string // for the table

	as string // the row that this one repeats with another program: it stands in a column of that row
}

// situations returns all rows, in the order of the table.
func situations() []situation {
	return slices.Concat(replicaRows(), clusterRows(), userRows(), machineRows(), bundleRows())
}

// A result is what a row has measured.
type result struct {
	Name, Seconds, Alerts string
	Failed                bool
}

var results struct {
	sync.Mutex
	byName map[string]result
}

// TestGameDays runs the rows: a sample, or all with -every.
func TestGameDays(t *testing.T) {
	results.byName = map[string]result{}
	names := map[string]bool{}
	t.Run("rows", func(t *testing.T) {
		for _, s := range situations() {
			if names[s.name] {
				t.Errorf("two rows are named %s", s.name)
			}
			names[s.name] = true
			if s.notRun != "" || s.soak && !*soak || !*every && !s.sample {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				s.run(t)
			})
		}
	})
	if *write != "" {
		if err := writePage(*write, situations(), results.byName); err != nil {
			t.Error(err)
		}
	}
}

func (s situation) run(t *testing.T) {
	if s.own != nil {
		took := s.own(t)
		results.Lock()
		defer results.Unlock()
		results.byName[s.name] = result{Name: s.name, Seconds: fmt.Sprintf("%.1f", took.Seconds()), Failed: t.Failed()}
		return
	}
	d := newDay(t, s.setup)
	d.starts()
	s.do(d)
	if d.over.IsZero() {
		d.ends()
	}
	bound := cmp.Or(s.bound, 10*time.Second)
	d.await(max(bound, limit), func() error { return d.right(s.skip) })
	took := cmp.Or(d.took, time.Since(d.over))
	if took > bound {
		t.Errorf("all was right after %v, want %v", took, bound)
	}
	d.await(limit, d.allReady)
	for _, texts := range s.says {
		if after := d.says(time.Second, texts...); after > 10*time.Second {
			t.Errorf("the line with %q came after %v, want 10s", texts, after)
		}
	}
	time.Sleep(3 * time.Second) // three evaluations of the rules
	fired, err := d.prom.fired(d.begin)
	if err != nil {
		t.Error(err)
	}
	for _, alert := range s.fires {
		if !fired[alert] {
			t.Errorf("the alert %s did not fire", alert)
		}
	}
	for alert := range fired {
		if !slices.Contains(s.fires, alert) && !slices.Contains(s.may, alert) {
			t.Errorf("the alert %s fired", alert)
		}
	}
	restarts := 0
	for _, p := range slices.Concat(d.past, d.pods) {
		restarts += len(p.restarted())
		if err := probesFit(s.probes, p, d.begin); err != nil {
			t.Error(err)
		}
	}
	if restarts != s.restarts {
		t.Errorf("%d restarts, want %d", restarts, s.restarts)
	}
	lines := d.lines()
	if most := max(cmp.Or(s.quiet, 40), 0); len(lines) > most {
		t.Errorf("the log has %d lines since it began, want at most %d", len(lines), most)
	}
	d.othersUntouched()
	for _, p := range d.pods {
		d.stopped(p)
	}
	for _, fault := range d.service.wrong() {
		t.Errorf("the DNS service: %s", fault)
	}
	t.Logf("%s: right after %.1fs, fired %v, %d lines:\n%s", s.name, took.Seconds(), slices.Sorted(maps.Keys(fired)), len(lines), summary(lines))
	results.Lock()
	defer results.Unlock()
	results.byName[s.name] = result{Name: s.name, Seconds: fmt.Sprintf("%.1f", took.Seconds()), Alerts: strings.Join(slices.Sorted(maps.Keys(fired)), ", "), Failed: t.Failed()}
}

// What the probes may say while it happens, after each replica was ready for the first time.
const (
	steady   = ""         // live and ready all the time
	unready  = "unready"  // live all the time
	dead     = "dead"     // any
	notReady = "notReady" // live all the time, and not ready at some time
)

func probesFit(want string, p *pod, begin time.Time) error {
	everUnready, started := false, false
	for _, s := range p.seen(begin) {
		started = started || s.ready
		if !started {
			continue // of a new replica, whose startup probe still runs
		}
		everUnready = everUnready || !s.ready
		if !s.live && want != dead || !s.ready && want == steady {
			return fmt.Errorf("the probes of %s, want %q", p.probesText(begin), want)
		}
	}
	if want == notReady && !everUnready {
		return fmt.Errorf("the probes of %s, want not ready at some time", p.probesText(begin))
	}
	return nil
}

// writePage writes the table. Rows that did not run keep their figures of an earlier run beside the page.
func writePage(path string, all []situation, ran map[string]result) error {
	known := map[string]result{}
	stored := filepath.Join("testdata", "results.json")
	if data, err := os.ReadFile(stored); err == nil {
		if err := json.Unmarshal(data, &known); err != nil {
			return fmt.Errorf("%s: %w", stored, err)
		}
	}
	maps.Copy(known, ran)
	var b strings.Builder
	b.WriteString(pageHead)
	seconds := func(s situation) string {
		if s.notRun != "" {
			return "not run: " + s.notRun
		}
		if r, ok := known[s.name]; ok && !r.Failed {
			return r.Seconds + " s"
		}
		return "failed"
	}
	b.WriteString("| what happens | the on-call sees | the library does | left to a person | right after | in a manager | plain controller-runtime |\n|---|---|---|---|---|---|---|\n")
	for _, s := range all {
		if s.as != "" {
			continue
		}
		others := map[string]string{}
		for _, o := range all {
			if o.as == s.name {
				others[o.setup.program] = strings.TrimSuffix(seconds(o)+": "+o.does, ": ")
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", s.title, s.onCall, s.does, cmp.Or(s.left, "nothing"), seconds(s), others["./managed"], others["./plain"])
	}
	data, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(stored, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

const pageHead = `# Game days

The operator of [internal/gamedays](../internal/gamedays) has everything that these pages describe. Each row of
the table is a test: a real API server, a Prometheus with the shipped alerts, replicas as processes, and a DNS
service. ` + "`make gamedays`" + ` runs all of them and writes this page, ` + "`make test`" + ` a sample. "Right after" counts from the
end of the situation until all objects and records are right. The last two columns repeat some rows with
[the same operator inside a manager](../internal/gamedays/managed), by package managerkit, and with
[plain controller-runtime](../internal/gamedays/plain) as its book teaches. In the tests, alerts fire five times sooner than
in production, and the processes keep their own times.

`
