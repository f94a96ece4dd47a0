package ssa

import (
	"cmp"
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// ApplyChanged is Apply if config would change live. Otherwise it returns live, the same
// pointer, without a request. applied reports whether it made a successful request.
//
// live is the object as the caller knows it, usually from a lister. If live is nil,
// ApplyChanged applies, and creates the object if it does not exist. Otherwise the apply
// carries the uid of live: if that object is gone, the error is [ErrUIDMismatch], and
// ApplyChanged does not create it again. A live object of another kind, name or
// namespace than config is an error.
//
// The decision needs the managedFields of live; without them ApplyChanged always
// applies. extract is the generated ExtractX function of the kind. It decides about
// atomic fields, such as the selector of a Deployment. If it is nil, ApplyChanged
// applies configurations with such fields. The first call of an extract function in a
// process parses the schemas of all built-in types.
//
// If ApplyChanged cannot decide whether config would change live, it applies. If that
// apply is a no-op, the next call still applies again. A [Memory] prevents that.
//
// If live is unstructured and the configuration has an empty map for a field that is not empty,
// ApplyChanged applies, also with client-go's extractor for unstructured objects. That reads
// OpenAPI v2, which omits the type of a nullable field, and cannot show that the map is atomic.
//
// ApplyChanged does not see changes that the API server would make by itself, such as new
// defaults, nor that a new schema makes a granular field atomic. They come with the next
// write. A change in the other direction it sees only if extract has the new schema.
//
// A uid or resourceVersion in config is a precondition: if live does not meet it,
// ApplyChanged applies, and the API server rejects the apply.
func ApplyChanged[T metav1.Object, C any](ctx context.Context, fm FieldManager, request func(context.Context, C, metav1.ApplyOptions) (T, error), config C, live T, extract func(live T, fieldManager string) (C, error)) (response T, applied bool, err error) {
	var none *Memory[T, C]
	return none.ApplyChanged(ctx, fm, request, config, live, extract)
}

// Memory remembers no-op applies, so that [Memory.ApplyChanged] does not repeat them. A
// controller has one Memory for each kind that it applies.
//
// The API server changes the resourceVersion at each apply of some configurations,
// without any other change, for example if it does not store an empty list. The event of
// that change brings the controller back, and without a Memory it applies again, in an
// endless loop.
//
// An exception is an item of a list without its keys, if the schema has a default for each key:
// the API server adds it at one apply and removes it at the next one. Write the keys.
//
// The zero Memory is empty and ready. It is safe for concurrent use and must not be
// copied. All its objects must come from one cluster.
type Memory[T metav1.Object, C any] struct {
	// Objects is the number of objects that the Memory holds. If it is full, it
	// forgets an arbitrary object. One object takes about 200 bytes. 0 means 4096.
	Objects int

	mu   sync.Mutex // guards seen
	seen map[memoryKey]noop
}

type memoryKey struct {
	uid     types.UID
	manager FieldManager
}

// noop is an apply that was a no-op.
type noop struct {
	sum apply.Sum // of the configuration and the object
	at  time.Time
}

// trusted is how long a Memory relies on a no-op apply. After a change of the schema, the
// same apply can have an effect.
const trusted = 10 * time.Minute

// ApplyChanged is [ApplyChanged], except that it skips an apply that was a no-op within
// the last ten minutes. A change of the configuration, or of the object other than its
// status, ends that. If live has no managedFields, it compares only the values. It does not
// remember applies of objects that are too large to decide about.
func (m *Memory[T, C]) ApplyChanged(ctx context.Context, fm FieldManager, request func(context.Context, C, metav1.ApplyOptions) (T, error), config C, live T, extract func(live T, fieldManager string) (C, error)) (response T, applied bool, err error) {
	c, err := encode(ctx, fm, request, config)
	if err != nil {
		return response, false, err
	}
	defer c.Release()
	if kube.IsNil(live) {
		response, err = call(ctx, fm, request, config, true)
		return response, err == nil, err
	}
	if err := c.Match(live); err != nil {
		return response, false, prefixed(err)
	}
	unchanged, why := apply.Unchanged(ctx, string(fm), c, live, extract)
	if unchanged {
		calls.NoteWrite(ctx, calls.Apply, false)
		return live, false, nil
	}
	// The API server decides about preconditions, so a Memory does not.
	remembers := m != nil && live.GetUID() != "" && (c.UID == "" || c.UID == string(live.GetUID())) && c.ResourceVersion == ""
	key := memoryKey{live.GetUID(), fm}
	var before apply.Sum
	var owned bool
	if remembers {
		if before, owned, remembers = c.Sum(live, true); remembers && m.remembers(key, before) {
			calls.NoteWrite(ctx, calls.Apply, false)
			return live, false, nil
		}
	}
	klog.FromContext(ctx).V(4).Info("Applying", "fieldManager", string(fm), "namespace", live.GetNamespace(), "name", live.GetName(), "because", kube.Printable(why, 512))
	if config, err = apply.Guard(c, config, live, false); err != nil {
		return response, false, prefixed(err)
	}
	if !remembers && why == apply.Bare {
		ctx = context.WithValue(ctx, calls.Bare{}, metav1.Object(live))
	}
	if response, err = call(ctx, fm, request, config, true); err != nil {
		return response, false, err
	}
	if remembers && !kube.IsNil(response) {
		if after, _, ok := c.Sum(response, owned); ok && after == before {
			m.remember(key, before)
		}
	}
	return response, true, nil
}

func (m *Memory[T, C]) remembers(key memoryKey, sum apply.Sum) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.seen[key]
	return ok && n.sum == sum && time.Since(n.at) < trusted
}

func (m *Memory[T, C]) remember(key memoryKey, sum apply.Sum) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen == nil {
		m.seen = map[memoryKey]noop{}
	}
	if _, known := m.seen[key]; !known && len(m.seen) >= max(cmp.Or(m.Objects, 4096), 1) {
		for other := range m.seen {
			delete(m.seen, other)
			break
		}
	}
	m.seen[key] = noop{sum: sum, at: time.Now()}
}
