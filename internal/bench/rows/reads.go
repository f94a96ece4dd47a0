package rows

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/internal/bench"
)

const (
	readsEvents = 200_000
	readsByHand = "mapping by hand"
)

func init() {
	const nobody, selectors, many = "nobody has read it, 100,000 keys", "10,000 selectors", "100,000 selectors"
	bench.Register(bench.Row{
		Name: "reads/event",
		About: "An update of a Secret that concerns no key or one: each of the keys has read three other Secrets by name, or has listed Secrets by a selector of its own, whose operators are =, in and exists by turns. " +
			"The rival is an event handler with a function that maps the Secret to keys: by an index of the objects by the names that they use, or by the selector of each object, which it has parsed before.",
		Op: "event",
		Goals: []bench.Goal{
			{Figure: bench.Time, Case: nobody, AtMost: 2_000},
			{Figure: bench.Time, Case: selectors, AtMost: 200_000},
			{Figure: bench.Time, Case: selectors, Rival: readsByHand, AtMost: 0.1},
		},
		Pairs: func(context.Context) ([]bench.Pair, func(), error) {
			pair := func(name string, keys int, bySelector bool) bench.Pair {
				return bench.Pair{
					Case:   name,
					Ours:   bench.Contender{Name: "reads", Run: func(ctx context.Context, m *bench.Meter) (int, error) { return readsOurs(ctx, m, keys, bySelector) }},
					Theirs: bench.Contender{Name: readsByHand, Run: func(_ context.Context, m *bench.Meter) (int, error) { return readsTheirs(m, keys, bySelector) }},
				}
			}
			return []bench.Pair{pair(nobody, 100_000, false), pair(selectors, 10_000, true), pair(many, 100_000, true)}, nil, nil
		},
	})
}

// readsSelector returns the selector of a key.
func readsSelector(key int) (labels.Selector, error) {
	return labels.Parse(fmt.Sprintf([]string{"app=x%d", "app in (x%d,y%[1]d),tier", "app%d"}[key%3], key))
}

// readsSecret is a Secret of which a selector selects those of one version.
func readsSecret(version int, bySelector bool) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "other", ResourceVersion: fmt.Sprint(version), Labels: map[string]string{"tier": "front", "release": "one"}}}
	if bySelector {
		s.Labels["app"] = "x6"
	}
	return s
}

// counted is a queue that counts.
type counted struct{ n int }

func (c *counted) Add(types.NamespacedName) { c.n++ }

// readsEventsOf measures updates of a Secret.
func readsEventsOf(m *bench.Meter, handler cache.ResourceEventHandler, q *counted, keys int, bySelector bool) (int, error) {
	before, after := readsSecret(1, bySelector), readsSecret(2, bySelector)
	n := m.N(readsEvents)
	if bySelector {
		n = max(1, m.N(20_000_000/keys)) // the rival looks at all selectors
	}
	m.Measure(func() {
		for range n {
			handler.OnUpdate(before, after)
		}
	})
	if want := map[bool]int{true: n}[bySelector]; q.n < want || q.n > 2*want {
		return 0, fmt.Errorf("%d keys were added for %d events, want %d", q.n, n, want)
	}
	return n, nil
}

func readsOurs(ctx context.Context, m *bench.Meter, keys int, bySelector bool) (int, error) {
	var tracker reads.Tracker[types.NamespacedName]
	informer := cache.NewSharedIndexInformer(nil, &corev1.Secret{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	reader, err := reads.From[*corev1.Secret](&tracker, corev1.Resource("secrets"), informer, nil)
	if err != nil {
		return 0, err
	}
	keys = m.N(keys)
	for key := range keys {
		call := tracker.Begin(ctx, types.NamespacedName{Namespace: "a", Name: fmt.Sprint(key)})
		if bySelector {
			selector, err := readsSelector(key)
			if err != nil {
				return 0, err
			}
			if _, err := reader.List(call, "a", selector); err != nil {
				return 0, err
			}
		} else {
			for i := range 3 {
				if _, err := reader.Get(call, "a", fmt.Sprint(key, "-", i)); err == nil {
					return 0, errors.New("an absent object is found")
				}
			}
		}
		call.End(true)
	}
	q := &counted{}
	return readsEventsOf(m, reader.Handler(q), q, keys, bySelector)
}

// readsUser is an object that uses Secrets.
type readsUser struct {
	metav1.ObjectMeta
	uses     []string
	selector labels.Selector
}

func readsTheirs(m *bench.Meter, keys int, bySelector bool) (int, error) {
	users := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{"secret": func(obj any) ([]string, error) { return obj.(*readsUser).uses, nil }})
	keys = m.N(keys)
	all := make([]*readsUser, keys)
	for key := range keys {
		selector, err := readsSelector(key)
		if err != nil {
			return 0, err
		}
		all[key] = &readsUser{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(key)}, selector: selector}
		for i := range 3 {
			all[key].uses = append(all[key].uses, fmt.Sprint("a/", key, "-", i))
		}
		if err := users.Add(all[key]); err != nil {
			return 0, err
		}
	}
	byName := func(s *corev1.Secret) (keys []types.NamespacedName) {
		found, _ := users.ByIndex("secret", s.Namespace+"/"+s.Name) // the index exists
		for _, user := range found {
			keys = append(keys, enqueue.KeyOf(user.(*readsUser))...)
		}
		return keys
	}
	bySelectors := func(s *corev1.Secret) (keys []types.NamespacedName) {
		set := labels.Set(s.Labels)
		for _, user := range all {
			if user.selector.Matches(set) {
				keys = append(keys, enqueue.KeyOf(user)...)
			}
		}
		return keys
	}
	q := &counted{}
	handler := enqueue.Handler(q, byName)
	if bySelector {
		handler = enqueue.Handler(q, bySelectors)
	}
	return readsEventsOf(m, handler, q, keys, bySelector)
}
