package watcher_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/watcher"
)

// model is an API server with one collection. It never invents or reorders events: it
// only cuts, refuses, expires, repeats and falls silent, as real ones do. Every answer
// is determined by the input, so the watcher's whole life is.
type model struct {
	input   []byte
	history []change // all changes, versions ascending
	rv      int
	oldest  int // what is before has expired
	uids    int
	pageOf  map[string][]*corev1.Pod // by continue token: the rest of a list
	silent  bool                     // it was restored, and no handled event has shown it yet
	known   bool                     // the watcher has listed
	streams int                      // since the watcher began or listed
}

type change struct {
	rv    int
	event watch.Event
}

// next returns the next byte of input, 0 at its end, when all faults end too.
func (m *model) next() byte {
	if len(m.input) == 0 {
		return 0
	}
	b := m.input[0]
	m.input = m.input[1:]
	return b
}

// state returns the objects at a version.
func (m *model) state(rv int) map[types.UID]string {
	state := map[types.UID]string{}
	for _, c := range m.history {
		if c.rv > rv {
			break
		}
		apply(state, c.event.Type, c.event.Object.(*corev1.Pod))
	}
	return state
}

func apply(state map[types.UID]string, eventType watch.EventType, p *corev1.Pod) {
	if eventType == watch.Deleted {
		delete(state, p.UID)
		return
	}
	state[p.UID] = p.Name + "@" + p.ResourceVersion
}

// mutate makes a change of one of four names.
func (m *model) mutate(b byte) {
	name := "pod-" + strconv.Itoa(int(b>>1)%4)
	var last *change
	for i := range slices.Backward(m.history) {
		if m.history[i].event.Object.(*corev1.Pod).Name == name {
			last = &m.history[i]
			break
		}
	}
	m.rv += 1 + int(b>>3)%3 // other resources have changes too
	ev := watch.Event{Type: watch.Added}
	switch {
	case last == nil || last.event.Type == watch.Deleted:
		m.uids++
		ev.Object = pod(name, fmt.Sprintf("uid-%d", m.uids), strconv.Itoa(m.rv))
	default:
		ev.Type = watch.Modified
		if b&1 == 1 {
			ev.Type = watch.Deleted
		}
		ev.Object = pod(name, string(last.event.Object.(*corev1.Pod).UID), strconv.Itoa(m.rv))
	}
	m.history = append(m.history, change{m.rv, ev})
}

func (m *model) mutations() {
	for range m.next() % 8 {
		m.mutate(m.next())
	}
}

func (m *model) List(_ context.Context, opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
	if m.next()%8 == 7 {
		m.mutations() // a failing server still changes
		if m.next()%2 == 0 {
			return nil, metav1.ListMeta{}, status(410, metav1.StatusReasonExpired, 0)
		}
		return nil, metav1.ListMeta{}, status(500, metav1.StatusReasonInternalError, 0)
	}
	if isCheck(opts) {
		return m.check(opts)
	}
	if opts.Continue != "" {
		var rv string
		_, _ = fmt.Sscanf(opts.Continue, "at %s", &rv)
		rest := m.pageOf[opts.Continue]
		m.mutations() // later pages show the version of the first one
		return rest, metav1.ListMeta{ResourceVersion: rv}, nil
	}
	m.known, m.streams = true, 0
	items := m.objects(m.rv)
	listMeta := metav1.ListMeta{ResourceVersion: strconv.Itoa(m.rv)}
	if len(items) > 1 && m.next()%2 == 1 {
		listMeta.Continue = "at " + listMeta.ResourceVersion
		m.pageOf[listMeta.Continue] = items[1:]
		items = items[:1]
	}
	return items, listMeta, nil
}

// objects returns the objects at a version.
func (m *model) objects(rv int) []*corev1.Pod {
	latest := map[types.UID]*corev1.Pod{}
	for _, c := range m.history {
		if c.rv > rv {
			break
		}
		p := c.event.Object.(*corev1.Pod)
		latest[p.UID] = p.DeepCopy()
		if c.event.Type == watch.Deleted {
			delete(latest, p.UID)
		}
	}
	var items []*corev1.Pod
	for _, uid := range slices.Sorted(maps.Keys(latest)) {
		items = append(items, latest[uid])
	}
	return items
}

// check responds to a list of the present or of one version.
func (m *model) check(opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
	if opts.ResourceVersion == "" {
		opts.ResourceVersion = strconv.Itoa(m.rv)
	}
	rv, err := strconv.Atoi(opts.ResourceVersion)
	switch {
	case err != nil:
		return nil, metav1.ListMeta{}, status(400, metav1.StatusReasonBadRequest, 0)
	case rv > m.rv:
		tooLarge := status(504, metav1.StatusReasonTimeout, 0)
		tooLarge.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		return nil, metav1.ListMeta{}, tooLarge
	case rv < m.oldest:
		return nil, metav1.ListMeta{}, status(410, metav1.StatusReasonExpired, 0)
	}
	items := m.objects(rv)
	if selector, err := fields.ParseSelector(opts.FieldSelector); err == nil {
		items = slices.DeleteFunc(items, func(p *corev1.Pod) bool {
			return !selector.Matches(fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace})
		})
	}
	return items, metav1.ListMeta{ResourceVersion: opts.ResourceVersion}, nil
}

func (m *model) Watch(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	from, err := strconv.Atoi(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	m.mutations()
	kind := m.next() % 16
	switch kind {
	case 1:
		return nil, errors.New("connection refused")
	case 2:
		return nil, status(429, metav1.StatusReasonTooManyRequests, 2)
	case 3:
		return nil, status(410, metav1.StatusReasonGone, 0)
	case 4:
		return nil, status(404, metav1.StatusReasonNotFound, 0)
	case 5:
		m.oldest = m.rv // compacted
	case 6: // restored from a backup
		m.history = m.history[:len(m.history)/2]
		m.rv = 1
		if n := len(m.history); n > 0 {
			m.rv = m.history[n-1].rv
		}
		m.oldest = 0
		m.silent = true
		// It may have passed the position already. A watcher that began at a version has
		// nothing to compare, and the first watch after a list is not checked.
		for m.known && m.streams > 0 && m.rv < from && m.next()%16 != 0 {
			m.mutate(m.next())
		}
		if m.rv < from {
			return open(), nil // silent for versions that it has not reached again
		}
	}
	m.streams++
	if from < m.oldest {
		return closing(errorEvent(status(410, metav1.StatusReasonExpired, 0))), nil
	}
	since := from
	if kind == 7 {
		since -= int(m.next()) % 8 // a server that begins too early
	}
	var events []watch.Event
	for _, c := range m.history {
		if c.rv <= since {
			continue
		}
		for range 1 + m.next()/128*m.next()/64%2 { // now and then twice
			events = append(events, watch.Event{Type: c.event.Type, Object: c.event.Object.DeepCopyObject()})
		}
		if m.next()%4 == 3 && c.rv >= from {
			events = append(events, bookmark(strconv.Itoa(c.rv)))
		}
	}
	end := bookmark(strconv.Itoa(max(m.rv, from)))
	switch n := int(m.next()); kind {
	case 8, 9: // cut
		return closing(events[:min(n, len(events))]...), nil
	case 10: // expired in the middle
		return closing(append(events[:min(n, len(events))], errorEvent(status(410, metav1.StatusReasonExpired, 0)))...), nil
	case 11: // garbage
		return closing(append(events[:min(n, len(events))], watch.Event{Type: watch.Error, Object: &corev1.Pod{}})...), nil
	case 12: // silent after the events
		return open(events...), nil
	case 13: // closed in good order
		st := open(append(events, end)...)
		time.AfterFunc(2*time.Minute, st.Stop)
		return st, nil
	}
	if len(m.input) > 0 {
		return closing(append(events, end)...), nil
	}
	return open(append(events, end)...), nil
}

// consume watches the model to the end of its input, restarting now and then from
// LastResourceVersion, and checks every event against the history.
func consume(t *testing.T, input []byte) {
	m := &model{input: input, rv: 1, pageOf: map[string][]*corev1.Pod{}}
	m.mutations()
	state := map[types.UID]string{}
	position := -1 // -1: within a list
	resume := ""
	deadline := time.Now().Add(7 * 24 * time.Hour) // of the bubble's time
	for {
		if resume == "" {
			clear(state)
			position = -1
		}
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: m, ResourceVersion: resume}
		retried := false
		m.known, m.streams = false, 0
		done := false
		for ev, err := range w.Events(t.Context()) {
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("no end in sight at version %d of %d, position %d; error %v", m.rv, len(m.history), position, err)
			}
			if len(m.input) > 0 && m.next()%32 == 31 && !m.silent {
				break // not handled, so it must come again
			}
			p := ev.Object
			if ev.Synthetic || errors.Is(ev.Err, watcher.ErrRestored) {
				m.silent = false
			}
			listable := position == -1 || retried // a list can begin
			retried = ev.Type == watcher.Retrying
			switch ev.Type {
			case watcher.Retrying:
				if errors.Is(ev.Err, watcher.ErrRestored) || apierrors.HasStatusCause(ev.Err, metav1.CauseTypeResourceVersionTooLarge) {
					position = -1
				}
				if rv, err := strconv.Atoi(ev.ResourceVersion); (err != nil) != (position == -1) || err == nil && rv != position {
					t.Fatalf("%s at position %d", show(ev), position)
				}
				continue
			case watcher.Reset:
				clear(state)
				position = -1
				continue
			case watcher.Synced:
				rv, _ := strconv.Atoi(ev.ResourceVersion)
				if diff := cmp.Diff(m.state(rv), state); diff != "" {
					t.Fatalf("state at Synced, version %d (-model +consumer):\n%s", rv, diff)
				}
				position = rv
			case watch.Bookmark:
				rv, _ := strconv.Atoi(ev.ResourceVersion)
				if missed := between(m, position, rv); len(missed) > 0 {
					t.Fatalf("bookmark %d before the events %v", rv, missed)
				}
				position = rv
			default:
				if _, known := state[p.UID]; known != (ev.Type != watch.Added) {
					t.Fatalf("%s while the consumer knows %v", show(ev), state)
				}
				apply(state, ev.Type, p)
				if ev.Synthetic {
					if !listable || ev.ResourceVersion != "" {
						t.Fatalf("%s outside of a list", show(ev))
					}
					position = -1
					continue
				}
				rv, _ := strconv.Atoi(p.ResourceVersion)
				if missed := between(m, position, rv); len(missed) != 1 {
					t.Fatalf("%s at position %d: the events up to it are %v, want exactly one", show(ev), position, missed)
				}
				position = rv
			}
			if len(m.input) == 0 && position == m.rv {
				if diff := cmp.Diff(m.state(m.rv), state); diff != "" {
					t.Fatalf("state at the end (-model +consumer):\n%s", diff)
				}
				done = true
				break
			}
		}
		if done {
			return
		}
		resume = w.LastResourceVersion()
		if resume == "" && position != -1 {
			t.Fatalf("no version to resume from at position %d", position)
		}
		if resume == "" {
			continue
		}
		if rv, _ := strconv.Atoi(resume); rv != position {
			t.Fatalf("LastResourceVersion() = %d, handled up to %d", rv, position)
		}
	}
}

// between returns the versions of the changes in (from, to].
func between(m *model, from, to int) []int {
	var rvs []int
	for _, c := range m.history {
		if c.rv > from && c.rv <= to {
			rvs = append(rvs, c.rv)
		}
	}
	return rvs
}

// FuzzEvents proves W1.
func FuzzEvents(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(randomInput(seed, 200))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		synctest.Test(t, func(t *testing.T) { consume(t, input[:min(len(input), 2000)]) })
	})
}

func randomInput(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	input := make([]byte, n)
	for i := range input {
		input[i] = byte(r.Uint32())
	}
	return input
}

// The seeds of the fuzz test are few; these are many.
//
// Proves W1, W3.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(3000) {
		input := randomInput(1000+seed, 50+int(seed)%600)
		ok := t.Run(strconv.Itoa(int(seed)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { consume(t, input) })
		})
		if !ok {
			break
		}
	}
}
