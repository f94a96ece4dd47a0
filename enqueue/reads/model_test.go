package reads_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/reconcile"
)

// A question is one read of a call.
type question struct {
	get       name
	list      string // the text of a selector
	namespace string // of list
	index     string // the value
	kind      int    // 0 get, 1 list, 2 index
}

// model has the objects and keys of TestModel.
type model struct {
	t       *testing.T
	rnd     *rand.Rand
	tracker tracker
	w       *world
	r       *reads.Reader[*secret, name]
	objects map[name]*secret
	version int
	pending []func() // events that the handler has not got

	depends map[name]map[question]bool   // what the tracker should remember
	answers map[name]map[question]string // of the last call that returned
	queued  map[name]bool

	selectors map[string]labels.Selector
}

var (
	namespaces = []string{"a", "b", "c"}
	values     = []string{"1", "2", "3"}
)

func index(s *secret) []string {
	v := s.Labels["index"]
	if v == "3" {
		panic("an object that the function does not expect")
	}
	return strings.Fields(v + " " + s.Annotations["also"])
}

func newModel(t *testing.T, seed uint64, narrow uint) *model {
	m := &model{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), w: newWorld(), objects: map[name]*secret{},
		depends: map[name]map[question]bool{}, answers: map[name]map[question]string{}, queued: map[name]bool{}, selectors: map[string]labels.Selector{},
	}
	m.tracker.Narrow(narrow)
	m.r = read(t, &m.tracker, m.w, map[string]func(*secret) []string{"by": index})
	return m
}

func pick[T any](m *model, from ...T) T { return from[m.rnd.IntN(len(from))] }

func (m *model) name() name {
	return name{Namespace: pick(m, namespaces...), Name: fmt.Sprint("o", m.rnd.IntN(6))}
}
func (m *model) key() name { return name{Namespace: "keys", Name: fmt.Sprint("k", m.rnd.IntN(8))} }

func (m *model) question() question {
	switch m.rnd.IntN(4) {
	case 0, 1:
		return question{get: m.name()}
	case 2:
		v, w := pick(m, values...), pick(m, values...)
		return question{kind: 1, namespace: pick(m, append([]string{""}, namespaces...)...), list: pick(m,
			"", "app", "!app", "app="+v, "app!="+v, "app in ("+v+","+w+")", "app notin ("+v+","+w+")",
			"app="+v+",tier="+w, "tier,app!="+v, "tier>1", "app="+v+",!tier", "tier in ("+v+"),app in ("+v+","+w+",x)")}
	default:
		return question{kind: 2, index: pick(m, values...)}
	}
}

// ask is the answer of the Reader.
func (m *model) ask(ctx context.Context, q question) string {
	var found []*secret
	var err error
	switch q.kind {
	case 0:
		var one *secret
		if one, err = m.r.Get(ctx, q.get.Namespace, q.get.Name); err == nil {
			found = append(found, one)
		} else if apierrors.IsNotFound(err) {
			err = nil
		}
	case 1:
		found, err = m.r.List(ctx, q.namespace, m.selector(q.list))
	default:
		found, err = m.r.ByIndex(ctx, "by", q.index)
	}
	return answer(found, err != nil)
}

func (m *model) selector(text string) labels.Selector {
	if m.selectors[text] == nil {
		m.selectors[text] = parse(m.t, text)
	}
	return m.selectors[text]
}

func answer(found []*secret, failed bool) string { return fmt.Sprint(versions(found), failed) }

func versions(found []*secret) (names []string) {
	for _, o := range found {
		names = append(names, o.Namespace+"/"+o.Name+"@"+o.ResourceVersion)
	}
	slices.Sort(names)
	return names
}

// truth is the answer of the objects, and the objects that its error is about.
func (m *model) truth(q question) (answered, about string) {
	var found, failed []*secret
	selector := m.selector(q.list)
	for id, o := range m.objects {
		switch {
		case q.kind == 0 && id == q.get,
			q.kind == 1 && (q.namespace == "" || q.namespace == id.Namespace) && selector.Matches(labels.Set(o.Labels)):
			found = append(found, o)
		case q.kind == 2 && o.Labels["index"] == "3":
			failed = append(failed, o)
		case q.kind == 2 && slices.Contains(index(o), q.index):
			found = append(found, o)
		}
	}
	return answer(found, len(failed) > 0), fmt.Sprint(versions(failed))
}

// state is both.
func (m *model) state(q question) string {
	answered, about := m.truth(q)
	return answered + about
}

// change changes an object, and returns the event.
func (m *model) change() (event func()) {
	id := m.name()
	old := m.objects[id]
	if old != nil && m.rnd.IntN(4) == 0 {
		delete(m.objects, id)
		must(m.t, m.w.indexer.Delete(old))
		return func() { m.handler().OnDelete(old) }
	}
	m.version++
	o := object(id.Namespace, id.Name, fmt.Sprint(m.version), map[string]string{})
	for _, label := range []string{"app", "tier", "index"} {
		if m.rnd.IntN(3) > 0 {
			o.Labels[label] = pick(m, values...)
		}
	}
	o.Annotations = map[string]string{"also": pick(m, "", "1", "2", "1 2")}
	m.objects[id] = o
	if old == nil {
		must(m.t, m.w.indexer.Add(o))
		return func() { m.handler().OnAdd(o, false) }
	}
	must(m.t, m.w.indexer.Update(o))
	return func() { m.handler().OnUpdate(old, o) }
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type handler interface {
	OnAdd(obj any, isInInitialList bool)
	OnUpdate(before, after any)
	OnDelete(obj any)
}

func (m *model) handler() handler {
	if m.w.handler == nil {
		m.w.handler = m.r.Handler(sink{m.w})
	}
	return m.w.handler
}

// deliver hands an event to the handler, and queues the keys.
func (m *model) deliver(event func()) map[name]int {
	event()
	keys := m.w.take()
	for key := range keys {
		m.queued[key] = true
	}
	return keys
}

// run runs one call of a key with new questions, or the former ones.
func (m *model) run(key name, middle func()) {
	delete(m.queued, key)
	var asked []question
	if m.rnd.IntN(2) == 0 {
		asked = slices.Collect(maps.Keys(m.depends[key]))
	}
	for range m.rnd.IntN(4) {
		asked = append(asked, m.question())
	}
	if m.rnd.IntN(30) == 0 { // a call with many reads
		for range 40 {
			asked = append(asked, m.question())
		}
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	end := m.rnd.IntN(6)
	got := map[question]string{}
	func() {
		defer func() {
			if r := recover(); r != nil && r != "the call" {
				panic(r)
			}
		}()
		_, _ = reads.Track(&m.tracker, func(ctx context.Context, _ name) (reconcile.Result, error) {
			for _, q := range asked {
				if answered, _ := m.truth(q); m.ask(ctx, q) != answered {
					m.t.Fatalf("%+v has the answer %s, want %s", q, m.ask(ctx, q), answered)
				}
				got[q] = m.state(q)
				middle()
			}
			switch end {
			case 0:
				panic("the call")
			case 1:
				cancel()
			case 2:
				return reconcile.Result{}, errors.New("the call")
			}
			return reconcile.Result{}, nil
		})(ctx, key)
	}()
	if end > 1 || m.depends[key] == nil {
		m.depends[key] = map[question]bool{}
	}
	for q := range got {
		m.depends[key][q] = true
	}
	m.answers[key] = got
	if end <= 1 {
		m.queued[key] = true // the loop runs it again
	}
}

// TestModel: in random sequences of objects, selectors, indexes, failures, panics and cancelled calls, an
// event adds exactly the keys whose answers change. Proves RM1, RM2 and RM3.
func TestModel(t *testing.T) {
	for seed := range uint64(30) {
		narrow := uint(0)
		if seed >= 20 {
			narrow = 59 // hashes of 5 bits: no event must miss a key, but some may add one too many
		}
		m := newModel(t, seed, narrow)
		for step := range 500 {
			if m.rnd.IntN(3) == 0 {
				m.run(m.key(), func() {})
				continue
			}
			before := map[name]map[question]string{}
			for key, depends := range m.depends {
				before[key] = map[question]string{}
				for q := range depends {
					before[key][q] = m.state(q)
				}
			}
			got := m.deliver(m.change())
			for key, answers := range before {
				changed := false
				for q, was := range answers {
					changed = changed || m.state(q) != was
				}
				if changed && got[key] == 0 || !changed && got[key] > 0 && narrow == 0 {
					t.Fatalf("seed %d, step %d: an answer of %s changes: %v, it is added: %v; it depends on %+v", seed, step, key, changed, got[key], answers)
				}
				if got[key] > 2 {
					t.Errorf("seed %d, step %d: %s is added %d times", seed, step, key, got[key])
				}
			}
		}
		for key := range m.depends {
			call(t, &m.tracker, key, func(context.Context) {})
		}
		if n := m.tracker.Len(); n != 0 || m.tracker.Buckets() != 0 || m.tracker.Forbidden() != 0 {
			t.Errorf("seed %d: %d reads and %d buckets are left for keys that read nothing", seed, n, m.tracker.Buckets())
		}
	}
}

// TestModelLate: with events that come late, and between the reads of a call, no key has an old answer in
// the end, unless it is queued. Proves RM1 and RM2.
func TestModelLate(t *testing.T) {
	compared := 0
	for seed := range uint64(20) {
		m := newModel(t, seed+100, 0)
		change := func() {
			if m.rnd.IntN(2) == 0 {
				m.pending = append(m.pending, m.change())
			}
			for len(m.pending) > m.rnd.IntN(8) {
				m.deliver(m.pending[0])
				m.pending = m.pending[1:]
			}
		}
		for range 500 {
			change()
			if m.rnd.IntN(3) == 0 {
				m.run(m.key(), change)
			}
		}
		for _, event := range m.pending {
			m.deliver(event)
		}
		for key, answers := range m.answers {
			for q, was := range answers {
				compared++
				if now := m.state(q); now != was && !m.queued[key] {
					t.Fatalf("seed %d: %s has read %+v as %s, it is %s, and nothing runs the key", seed, key, q, was, now)
				}
			}
		}
	}
	if compared == 0 {
		t.Error("no answer was compared")
	}
}
