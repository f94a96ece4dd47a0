package debug

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// The bounds of a page.
const (
	maxControllers = 50
	maxInformers   = 200
	maxShards      = 1000
	maxRows        = 50  // keys of each state, results and failures of a controller
	maxStory       = 200 // records of each kind in the story of one controller
)

// state is the content of a page, as HTML or as JSON. Its texts are printable and bounded.
type state struct {
	Title       string            `json:"title"`
	Now         time.Time         `json:"now"`
	Leader      *Leader           `json:"leader,omitempty"`
	Shards      *Shards           `json:"shards,omitempty"`
	Informers   []Informer        `json:"informers"`
	Verbosity   *verbosityState   `json:"verbosity,omitempty"` // nil unless it is raised
	CanSet      bool              `json:"-"`                   // the verbosity
	Controllers []controllerState `json:"controllers"`
	Search      string            `json:"search,omitempty"` // the key
	Story       []story           `json:"story,omitempty"`  // of the key, in each controller that knows it
	More        string            `json:"more,omitempty"`   // the parts that the page leaves out
}

// controllerState is the state of a controller.
type controllerState struct {
	Name         string    `json:"name"`
	Running      bool      `json:"running"`
	ShuttingDown bool      `json:"shuttingDown"`
	Workers      int       `json:"workers"`
	Busy         int       `json:"busy"`
	Counts       []count   `json:"counts"`
	Keys         []row     `json:"keys"`     // some of each state
	Blocked      []line    `json:"blocked"`  // finalizers
	Paused       []string  `json:"paused"`   // keys
	Failures     []callRow `json:"failures"` // the newest first
	Results      []callRow `json:"results"`  // the newest first
}

// count is the number of keys in a state.
type count struct {
	State string `json:"state"`
	Keys  int    `json:"keys"`
	Shown int    `json:"shown"`
}

// row is a key that waits or runs.
type row struct {
	Key      string    `json:"key"`
	State    string    `json:"state"`
	Why      string    `json:"why"`
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"`
	Priority int       `json:"priority"`
	Attempts int       `json:"attempts"` // calls since the last success
	Triggers []string  `json:"triggers,omitempty"`
	Last     *callRow  `json:"last,omitempty"`
}

// callRow is a call that has ended.
type callRow struct {
	Key      string    `json:"key"`
	At       time.Time `json:"at"`
	Took     string    `json:"took"`
	Result   string    `json:"result"`
	Attempt  int       `json:"attempt"`
	Triggers []string  `json:"triggers,omitempty"`
}

// story is the story of a key in a controller.
type story struct {
	Controller string `json:"controller"`
	Verdict    string `json:"verdict"`
	Lines      []line `json:"lines"`
}

// line is one thing that happened to a key.
type line struct {
	At   time.Time `json:"at"`
	Key  string    `json:"key"`
	Kind string    `json:"kind"`
	Text string    `json:"text"`
	Took string    `json:"took,omitempty"`
}

// state collects the state of the page. If search is not nil, it has the story of that key.
func (p *Page) state(search *types.NamespacedName) *state {
	s := &state{
		Title: cmp.Or(kube.Printable(p.Title, maxName), "controllers"), Now: time.Now(),
		Informers: []Informer{}, Controllers: []controllerState{}, Verbosity: p.verbosity.state(), CanSet: p.Verbosity != nil,
	}
	if p.Leader != nil {
		l := p.Leader()
		l.Lease = kube.Printable(l.Lease, 2*maxName)
		s.Leader = &l
	}
	if p.Shards != nil {
		shards := p.Shards()
		if n := len(shards.Owned); n > maxShards {
			s.More += fmt.Sprintf("%d of %d shards are shown. ", maxShards, n)
		}
		shards.Owned = append([]int{}, shards.Owned[:min(len(shards.Owned), maxShards)]...)
		s.Shards = &shards
	}
	if p.Informers != nil {
		all := p.Informers()
		if len(all) > maxInformers {
			s.More += fmt.Sprintf("%d of %d informers are shown. ", maxInformers, len(all))
		}
		for _, i := range all[:min(len(all), maxInformers)] {
			i.Name = kube.Printable(i.Name, maxName)
			s.Informers = append(s.Informers, i)
		}
	}
	p.mu.Lock()
	all := slices.Clone(p.controllers)
	p.mu.Unlock()
	if len(all) > maxControllers {
		s.More += fmt.Sprintf("%d of %d controllers are shown. ", maxControllers, len(all))
	}
	for _, c := range all[:min(len(all), maxControllers)] {
		s.Controllers = append(s.Controllers, c.state())
	}
	if search != nil {
		s.Search = text(*search)
		for _, c := range all {
			if found := c.story(*search); found != nil && len(s.Story) < maxControllers {
				s.Story = append(s.Story, *found)
			}
		}
	}
	return s
}

// state collects the state of the controller.
func (c *Controller) state() controllerState {
	s := controllerState{Name: kube.Printable(c.name, maxName), Counts: []count{}, Keys: []row{}, Blocked: []line{}, Paused: []string{}, Failures: []callRow{}, Results: []callRow{}}
	var keys []types.NamespacedName
	if c.Loop != nil {
		l := c.Loop.Snapshot()
		s.Running, s.Workers, s.Busy = l.Running, l.Workers, l.Busy
		s.Counts = append(s.Counts, count{State: "gated", Keys: l.Gated}, count{State: "parked", Keys: l.Parked}, count{State: "hot", Keys: l.Hot}, count{State: "failing", Keys: l.Failing})
		for _, k := range l.Keys {
			if s.show(k.State) {
				s.Keys = append(s.Keys, loopRow(k))
				keys = append(keys, parse(k.Key))
			}
		}
	}
	if c.Queue != nil {
		q := c.Queue.Snapshot()
		s.ShuttingDown = q.ShuttingDown
		s.Counts = append([]count{{State: "running", Keys: q.Running}, {State: "ready", Keys: q.Ready}, {State: "delayed", Keys: q.Delayed}}, s.Counts...)
		var queued []row
		var of []types.NamespacedName
		for _, k := range q.Keys {
			if s.show(k.State) {
				queued = append(queued, queueRow(k))
				of = append(of, parse(k.Key))
			}
		}
		if c.Loop != nil && len(of) > 0 {
			for i, k := range c.Loop.SnapshotOf(of...).Keys {
				queued[i].join(k)
			}
		}
		s.Keys, keys = append(queued, s.Keys...), append(of, keys...)
	}
	c.explain(s.Keys, keys)
	for key, held := range c.blocked() {
		s.Blocked = append(s.Blocked, line{At: held.since, Key: text(key), Kind: blocked.String(), Text: held.what})
	}
	slices.SortFunc(s.Blocked, func(a, b line) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Key, b.Key)) })
	s.Counts = append(s.Counts, count{State: blocked.String(), Keys: len(s.Blocked), Shown: min(len(s.Blocked), maxRows)})
	s.Blocked = s.Blocked[:min(len(s.Blocked), maxRows)]
	if c.Paused != nil {
		for _, key := range c.Paused.Keys(maxRows) {
			s.Paused = append(s.Paused, text(key))
		}
		s.Counts = append(s.Counts, count{State: "paused", Keys: c.Paused.Len(), Shown: len(s.Paused)})
	}
	for _, r := range c.history.last(failure, maxRows) {
		s.Failures = append(s.Failures, newCallRow(&r))
	}
	for _, r := range c.history.last(call, maxRows) {
		s.Results = append(s.Results, newCallRow(&r))
	}
	return s
}

// blocked returns the keys that a finalizer blocks and that this replica still has, none while the loop does not run.
// A key has left if its last call is long ago and no other one is due.
func (c *Controller) blocked() map[types.NamespacedName]holding {
	if c.Loop != nil && !c.Loop.SnapshotOf().Running {
		return nil
	}
	all := c.history.holdings()
	var old []types.NamespacedName
	for key, held := range all {
		if held.old() {
			old = append(old, key)
		}
	}
	if len(old) == 0 {
		return all
	}
	has := map[types.NamespacedName]bool{}
	if c.Queue != nil {
		for _, k := range c.Queue.SnapshotOf(old...).Keys {
			has[parse(k.Key)] = true
		}
	}
	if c.Loop != nil {
		for _, k := range c.Loop.SnapshotOf(old...).Keys {
			if k.State == "gated" || k.State == "parked" {
				has[parse(k.Key)] = true
			}
		}
	}
	for _, key := range old {
		if !has[key] {
			delete(all, key)
		}
	}
	return all
}

// show reports whether one more key of the state is shown.
func (s *controllerState) show(name string) bool {
	for i := range s.Counts {
		if n := &s.Counts[i]; n.State == name {
			if n.Shown < maxRows {
				n.Shown++
				return true
			}
			return false
		}
	}
	s.Counts = append(s.Counts, count{State: name, Keys: 1, Shown: 1})
	return true
}

// explain adds the last calls and the reasons to rows of the keys.
func (c *Controller) explain(rows []row, keys []types.NamespacedName) {
	wanted := map[types.NamespacedName]bool{}
	for _, key := range keys {
		wanted[key] = true
	}
	lasts := c.history.lasts(wanted)
	for i := range rows {
		if last, ok := lasts[keys[i]]; ok {
			rows[i].Last = new(newCallRow(&last))
		}
		rows[i].Why = rows[i].why()
	}
}

func loopRow(k controllerkit.LoopKey) row {
	r := row{Key: printable(k.Key), State: k.State, Since: k.Since}
	r.join(k)
	if k.State == "gated" {
		r.Why = printable(k.Reason)
	}
	return r
}

func queueRow(k controllerkit.QueueKey) row {
	return row{Key: printable(k.Key), State: k.State, Since: k.Since, Until: k.Until, Priority: k.Priority, Attempts: k.Attempts}
}

// join adds the state of the key in the loop.
func (r *row) join(k controllerkit.LoopKey) {
	if r.State == "delayed" && k.State == "hot" {
		r.Why = k.State
	}
	r.Attempts = max(r.Attempts, k.Attempts)
	for _, t := range k.Triggers[:min(len(k.Triggers), maxTriggers)] {
		r.Triggers = append(r.Triggers, printable(t))
	}
}

// why returns why the key does not move. Why already has what the loop knows.
func (r *row) why() string {
	after := ""
	if r.Last != nil {
		after = fmt.Sprintf(" The last call ended with %s.", r.Last.Result)
	}
	switch known := r.Why; r.State {
	case "running":
		return "A worker runs it."
	case "ready":
		return "It waits for a worker." + after
	case "delayed":
		switch {
		case known == "hot":
			return "It ran too often, so it is limited to 10 calls a second." + after
		case r.Attempts > 0:
			return fmt.Sprintf("It is retried after a delay: %d calls without success.", r.Attempts) + after
		case r.Last != nil && strings.HasPrefix(r.Last.Result, "requeue"):
			return "The last call asked for it by RequeueAfter."
		}
		return "It was added with a delay." + after
	case "gated":
		if known != "" {
			return "It waits for the cache to show its writes: " + known
		}
		return "It waits for the Gate."
	case "parked":
		return "MaxAttempts parked it. Its next event runs it." + after
	case "hot":
		return "It ran too often, so it is limited to 10 calls a second." + after
	case "failing":
		return fmt.Sprintf("%d calls without success.", r.Attempts) + after
	}
	return "Not in the queue: its next event runs it." + after
}

// story returns the story of the key, or nil if the controller does not know it.
func (c *Controller) story(key types.NamespacedName) *story {
	r := row{Key: text(key)}
	if c.Loop != nil {
		for _, k := range c.Loop.SnapshotOf(key).Keys {
			r = loopRow(k)
		}
	}
	if c.Queue != nil {
		for _, k := range c.Queue.SnapshotOf(key).Keys {
			queued := queueRow(k)
			if queued.Triggers = r.Triggers; r.State == "hot" {
				queued.Why = r.State
			}
			queued.Attempts = max(queued.Attempts, r.Attempts)
			r = queued
		}
	}
	rows := []row{r}
	c.explain(rows, []types.NamespacedName{{Namespace: short(key.Namespace), Name: short(key.Name)}})
	records := c.history.story(key, maxStory)
	paused := c.Paused != nil && c.Paused.Has(key)
	if r.State == "" && len(records) == 0 && !paused {
		return nil
	}
	s := &story{Controller: kube.Printable(c.name, maxName), Verdict: rows[0].Why, Lines: []line{}}
	if paused {
		s.Verdict = "An annotation pauses it, so its calls do nothing. " + s.Verdict
	}
	if held, ok := c.blocked()[types.NamespacedName{Namespace: short(key.Namespace), Name: short(key.Name)}]; ok {
		s.Verdict += fmt.Sprintf(" The finalizer %s blocks its deletion since %s.", held.what, stamp(held.since))
	}
	for _, r := range records {
		s.Lines = append(s.Lines, newLine(&r))
	}
	return s
}

// newLine returns the line of a record.
func newLine(r *record) line {
	l := line{At: r.at, Key: text(r.key), Kind: r.kind.String(), Text: r.what}
	switch {
	case r.kind == call || r.kind == failure:
		l.Text = fmt.Sprintf("%s, attempt %d", r.what, r.attempt)
		if len(r.triggers) > 0 {
			l.Text += ", because of " + printable(strings.Join(r.triggers, ", "))
		}
	case r.kind == write && r.status == 0:
		l.Text += ": no response"
	case r.kind == write && r.version == "":
		l.Text += fmt.Sprintf(": %d", r.status)
	case r.kind == write:
		l.Text += fmt.Sprintf(": %d, resource version %s", r.status, r.version)
	}
	if r.took >= 0 {
		l.Took = r.took.Round(time.Microsecond).String()
	}
	return l
}

func newCallRow(r *record) callRow {
	row := callRow{Key: text(r.key), At: r.at, Took: r.took.Round(time.Microsecond).String(), Result: r.what, Attempt: r.attempt}
	for _, t := range r.triggers {
		row.Triggers = append(row.Triggers, printable(t))
	}
	return row
}

// parse returns the key of a text of package queue or reconcile.
func parse(key string) types.NamespacedName {
	namespace, name, _ := strings.Cut(key, "/")
	return types.NamespacedName{Namespace: short(namespace), Name: short(name)}
}

// text returns a key as the page shows it.
func text(key types.NamespacedName) string { return printable(key.String()) }

// printable bounds a text and escapes what is not printable.
func printable(text string) string { return kube.Printable(text, maxCause) }

// stamp returns a time as the page shows it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000Z") }
