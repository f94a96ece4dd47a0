package gamedays

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	every  = flag.Bool("every", false, "run all rows, not only the sample")
	logs   = flag.Bool("logs", false, "print the last lines of all replicas, also after a success")
	soak   = flag.Bool("soak", false, "with -every, also run the rows that need much time")
	broken = flag.Bool("broken", false, "break the operator when each situation begins: used by TestBroken, whose rows must fail")
	write  = flag.Bool("write", false, "write docs/gamedays.md")
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
	spoil func(d *day) // breaks what the row promises, where an operator that sleeps does not; see TestBroken

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
			if !s.runs() {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				s.run(t)
			})
		}
	})
	if *write {
		if err := writePage(situations(), results.byName); err != nil {
			t.Error(err)
		}
	}
}

// runs reports whether the flags select the row.
func (s situation) runs() bool { return s.notRun == "" && (!s.soak || *soak) && (*every || s.sample) }

func (s situation) run(t *testing.T) {
	r := result{Name: s.name}
	defer func() { // also after a FailNow
		r.Failed = t.Failed()
		results.Lock()
		defer results.Unlock()
		results.byName[s.name] = r
	}()
	if s.own != nil {
		r.Seconds = fmt.Sprintf("%.1f", s.own(t).Seconds())
		return
	}
	d := newDay(t, s.setup)
	d.starts()
	if *broken {
		s.breaks(d)
	}
	s.do(d)
	if d.over.IsZero() {
		d.ends()
	}
	bound := cmp.Or(s.bound, 10*time.Second)
	wait := max(bound, limit)
	if *broken {
		wait = bound + 5*time.Second
	}
	d.await(wait, func() error { return d.right(s.skip) })
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
	if s.setup.program == "" {
		d.pages()
	}
	for _, p := range d.pods {
		d.stopped(p)
	}
	for _, fault := range d.service.wrong() {
		t.Errorf("the DNS service: %s", fault)
	}
	t.Logf("%s: right after %.1fs, fired %v, %d lines:\n%s", s.name, took.Seconds(), slices.Sorted(maps.Keys(fired)), len(lines), summary(lines))
	r.Seconds, r.Alerts = fmt.Sprintf("%.1f", took.Seconds()), strings.Join(slices.Sorted(maps.Keys(fired)), ", ")
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

const (
	pageFile   = "../../docs/gamedays.md"
	storedFile = "testdata/results.json" // what rows have measured: a row that does not run keeps its figures
)

// stored returns the results of earlier runs.
func stored() (map[string]result, error) {
	known := map[string]result{}
	data, err := os.ReadFile(storedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	return known, err
}

// writePage stores the results and writes the table.
func writePage(all []situation, ran map[string]result) error {
	known, err := stored()
	if err != nil {
		return err
	}
	maps.Copy(known, ran)
	for name := range known {
		if !slices.ContainsFunc(all, func(s situation) bool { return s.name == name && s.notRun == "" }) {
			delete(known, name)
		}
	}
	data, err := json.MarshalIndent(known, "", "  ")
	if err == nil {
		err = os.WriteFile(storedFile, append(data, '\n'), 0o644)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(pageFile, []byte(page(all, known)), 0o644)
}

// TestPage: docs/gamedays.md has each row, with what its last run has measured.
func TestPage(t *testing.T) {
	known, err := stored()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range situations() {
		if r, ok := known[s.name]; s.notRun == "" && (!ok || r.Failed) {
			t.Errorf("the row %s has no good result: run make gamedays", s.name)
		}
	}
	text, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(page(situations(), known), "\n")
	for i, line := range strings.Split(string(text), "\n") {
		if i >= len(want) || line != want[i] {
			t.Fatalf("line %d of docs/gamedays.md is not what the rows say: run make gamedays", i+1)
		}
	}
}

// page returns the page.
func page(all []situation, known map[string]result) string {
	seconds := func(s situation) string {
		if s.notRun != "" {
			return "not run: " + s.notRun
		}
		if r, ok := known[s.name]; ok && !r.Failed {
			return r.Seconds + " s"
		}
		return "failed"
	}
	var b strings.Builder
	b.WriteString(pageHead)
	b.WriteString("| what happens | the on-call sees | alerts | the library does | left to a person | right after |\n|---|---|---|---|---|---|\n")
	for _, s := range all {
		if s.as == "" {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", s.title, s.onCall, strings.ReplaceAll(known[s.name].Alerts, "Controller", ""), s.does, cmp.Or(s.left, "nothing"), seconds(s))
		}
	}
	b.WriteString(pageOthers)
	for _, s := range all {
		for _, o := range all {
			if o.as == s.name && o.setup.program == "./plain" {
				managed := slices.IndexFunc(all, func(m situation) bool { return m.as == s.name && m.setup.program == "./managed" })
				in := ""
				if managed >= 0 {
					in = strings.TrimSuffix(seconds(all[managed])+". "+all[managed].does, ". ")
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.title, seconds(s), in, strings.TrimSuffix(seconds(o)+". "+o.does, ". "))
			}
		}
	}
	return b.String()
}

const pageHead = `# Game days

The operator of [internal/gamedays](../internal/gamedays) has everything that these pages describe. Each row of
the table is a test: a real API server, a Prometheus with the shipped alerts, replicas as processes, and a DNS
service. ` + "`make gamedays`" + ` runs all of them and writes this page, ` + "`make test`" + ` a sample. The last column counts from the
end of the situation until all objects and records are right. In the tests, alerts fire five times sooner than
in production, and the processes keep their own times. The names of alerts lack "Controller".

`

const pageOthers = `
## Beside controller-runtime

Some rows ran with [the same operator inside a manager](../internal/gamedays/managed), by package managerkit,
and with [plain controller-runtime](../internal/gamedays/plain) as its book teaches.

| what happens | right after | in a manager with managerkit | plain controller-runtime |
|---|---|---|---|
`
