package ssa

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Memory makes [Memory.ApplyChanged] cheaper than [ApplyChanged], and right about more
// of what only the server can tell. It remembers which configurations changed nothing
// in which objects, and what the server's answers say about the schema of a kind. A
// controller has one for each kind that it applies, or one for all unstructured
// objects. It has to be where the objects come from one cluster.
//
// The zero Memory is empty and ready. It is safe for concurrent use and must not be
// copied.
type Memory[T metav1.Object, C any] struct {
	// Objects is how many objects are remembered; beyond that an arbitrary one is
	// forgotten. One takes about 200 bytes. 0 means 4096.
	Objects int

	mu     sync.Mutex // guards all below
	seeded bool
	seeds  [2]maphash.Seed
	seen   map[seenKey]seen
	shapes map[string]shape // by kind and path

	forests sync.Pool // of *forest: what decisions are made in
}

type seenKey struct {
	uid     types.UID
	manager FieldManager
}

// sum is long enough that two of a kind are as good as equal. The seeds are random.
type sum [2]uint64

// seen is a configuration that changes nothing in an object.
type seen struct {
	resourceVersion string // "" as long as that is not known: it is the last one that was applied
	config          sum
	content         sum // of the object and of what is owned; the zero one is of none
}

// These bound what is remembered of schemas: a map without a schema can have any names.
const (
	maxShapes = 1 << 14 // fields
	maxShape  = 1 << 10 // bytes of the path of one
)

// ApplyChanged is [ApplyChanged], with a memory.
func (m *Memory[T, C]) ApplyChanged(ctx context.Context, fm FieldManager, c Applier[T, C], config C, live T, extract func(live T, fieldManager string) (C, error)) (answer T, applied bool, err error) {
	return applyChanged(ctx, m, fm, c, config, live, extract)
}

// applyChanged is ApplyChanged. m is nil if there is no memory.
func applyChanged[T metav1.Object, C any](ctx context.Context, m *Memory[T, C], fm FieldManager, c Applier[T, C], config C, live T, extract func(live T, fieldManager string) (C, error)) (answer T, applied bool, err error) {
	if isNil(c) {
		answer, err = noClient[T]()
		return answer, false, err
	}
	if err := fm.check(); err != nil {
		return answer, false, err
	}
	e, err := encodeConfig(config)
	if err != nil {
		return answer, false, err
	}
	if isNil(live) {
		if err := e.read(nil); err != nil {
			return answer, false, err
		}
		if answer, err = call(ctx, fm, c.Apply, config, true); err == nil {
			m.learn(fm, e, answer, m.configSum(e.json), sum{})
		}
		return answer, err == nil, err
	}
	configSum := m.configSum(e.json)
	if m.knows(live, fm, configSum) {
		return live, false, nil
	}
	if m != nil {
		e.forest, _ = m.forests.Get().(*forest)
		defer func() { m.forests.Put(e.forest) }()
	}
	if err := e.read(live); err != nil {
		return answer, false, err
	}
	d := decide(m, fm, e, live)
	if len(live.GetManagedFields()) == 0 {
		d.rule(differs, "live has no managedFields")
		d.content = sum{} // it does not show the owners
	}
	if d.verdict == same && (len(d.questions) == 0 || settled(m, fm, d, e, live, extract)) || m.recalls(live, fm, configSum, d.content) {
		m.remember(live, fm, configSum, d.content)
		return live, false, nil
	}
	why := d.why
	if d.verdict == same {
		why = "the schema is not known"
	}
	klog.FromContext(ctx).V(4).Info("Applying", "fieldManager", string(fm), "namespace", live.GetNamespace(), "name", live.GetName(), "because", why)

	if uid, ok := e.text(e.meta, "uid"); !ok && uid == "" && live.GetUID() != "" {
		guarded, ok := withUID(config, string(live.GetUID()))
		if !ok {
			return answer, false, fmt.Errorf("ssa: metadata.uid of the configuration of %q: is not set, and cannot be set to that of live in a %T: set it", live.GetName(), config)
		}
		config = guarded
	}
	answer, err = call(ctx, fm, c.Apply, config, true)
	if err != nil {
		return answer, false, err
	}
	if !isNil(answer) && answer.GetUID() == live.GetUID() && answer.GetResourceVersion() == live.GetResourceVersion() {
		m.remember(live, fm, configSum, d.content)
	}
	m.learn(fm, e, answer, configSum, d.content)
	return answer, true, nil
}

// decision is a decider that has decided.
type decision struct {
	*decider
	owned   string // FieldsV1
	config  int32
	content sum
}

// decide compares a configuration with an object.
func decide[T metav1.Object, C any](m *Memory[T, C], fm FieldManager, e *encoded, live T) decision {
	entries := live.GetManagedFields()
	d := decision{decider: &decider{forest: e.forest}, config: e.root}
	entry, found := metav1.ManagedFieldsEntry{}, false
	for i := range entries {
		if entries[i].Manager == string(fm) && entries[i].Operation == metav1.ManagedFieldsOperationApply && entries[i].Subresource == "" {
			entry, found = entries[i], true
		}
	}
	d.owned = "{}" // of a manager that owns nothing
	switch {
	case found && entry.FieldsV1 == nil:
		d.rule(differs, "live has no fieldsV1")
		return d
	case found:
		d.owned, d.version = entry.FieldsV1.GetRawString(), entry.APIVersion
	}
	trimmed, ok := withManagedFields(live, nil)
	text, err := encodeText(trimmed)
	if !ok || err != nil {
		d.rule(differs, "live cannot be encoded")
		return d
	}
	liveRoot, err := e.forest.parse(text)
	if err != nil {
		d.rule(differs, "live cannot be read")
		return d
	}
	owned, err := e.forest.parse(d.owned)
	if err != nil || slices.ContainsFunc(e.forest.nodes[owned:], func(n node) bool { return n.kind != object }) {
		d.rule(differs, "fieldsV1 cannot be read")
		return d
	}
	d.live = reflect.TypeOf(live)
	if _, ok := any(live).(unstructuredContent); ok {
		d.live = nil
	}
	version, _ := e.text(e.root, "apiVersion")
	kind, _ := e.text(e.root, "kind")
	d.path = append(append(append(append(make([]byte, 0, 256), version...), down...), kind...), down...)
	d.prefix = len(d.path)
	d.shapes = m.shape
	d.others = func(name string) bool {
		return slices.ContainsFunc(entries, func(e metav1.ManagedFieldsEntry) bool {
			own := found && e.Manager == entry.Manager && e.Operation == entry.Operation && e.Subresource == entry.Subresource
			return !own && e.FieldsV1 != nil && strings.Contains(e.FieldsV1.GetRawString(), `"f:`+name+`"`)
		})
	}
	d.root(e.root, owned, liveRoot)
	if d.verdict != differs && d.twice(e.root) { // only raw JSON in a configuration can bring that
		d.rule(differs, "a member is there twice")
	}
	if fm == "kubectl" && live.GetAnnotations()["kubectl.kubernetes.io/last-applied-configuration"] != "" {
		d.rule(doubt, "the server keeps an annotation for kubectl")
	}
	certain := d.verdict == same && len(d.questions) == 0 && len(entries) > 0 // and will be at the same content
	if _, guarded := e.text(e.meta, "resourceVersion"); !guarded && !certain {
		hasStatus := e.forest.member(e.root, 0, "", "status") != 0
		d.content = m.contentSum(e.forest, liveRoot, text, hasStatus, entries)
	}
	return d
}

// settled finds the answers to the questions, if extract can give them: from an object
// in which the manager owns something inside the fields in question, extraction takes
// all of a field that is atomic, and nothing of one that is granular.
func settled[T metav1.Object, C any](m *Memory[T, C], fm FieldManager, d decision, e *encoded, live T, extract func(T, string) (C, error)) bool {
	if extract == nil || slices.ContainsFunc(d.questions, func(q question) bool { return q.want == dotted }) {
		return false
	}
	slices.SortFunc(d.questions, func(a, b question) int { return cmp.Compare(a.at, b.at) })
	var fields []byte
	at := 0
	for _, q := range d.questions {
		fields = append(fields, d.owned[at:q.at]...)
		fields = append(fields, `"f:":{}`...)
		at = q.at
	}
	fields = append(fields, d.owned[at:]...)
	probe, ok := withManagedFields(live, []metav1.ManagedFieldsEntry{{
		Manager: string(fm), Operation: metav1.ManagedFieldsOperationApply, APIVersion: d.version,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(fields)),
	}})
	if !ok {
		return false
	}
	extracted, err := extract(probe, string(fm))
	if err != nil {
		return false
	}
	text, err := encodeText(extracted)
	if err != nil {
		return false
	}
	root, err := d.parse(text)
	if err != nil {
		return false
	}
	left := len(d.questions)
	return d.answers(e.root, root, func(q question, is shape) {
		m.note(q.path, is)
		if is == q.want {
			left--
		}
	}) && left == 0
}

// answers walks a configuration beside the one that was extracted.
func (d decision) answers(config, extracted int32, answer func(question, shape)) bool {
	for _, q := range d.questions {
		if q.config == config {
			if x := d.nodes[extracted]; x.n > 0 {
				answer(q, atomic)
			} else {
				answer(q, granular)
			}
			return true
		}
	}
	c, x := d.nodes[config], d.nodes[extracted]
	switch {
	case c.kind < list || c.n == 0:
		return true
	case c.kind != x.kind, c.kind == list && c.n != x.n:
		return false
	case c.kind == list:
		for i, j := c.child, x.child; i != 0; i, j = d.nodes[i].next, d.nodes[j].next {
			if !d.answers(i, j, answer) {
				return false
			}
		}
	default:
		hint := int32(0)
		for i := c.child; i != 0; i = d.nodes[i].next {
			j := d.member(extracted, hint, "", d.nodes[i].key)
			hint = cmp.Or(j, hint)
			if !d.answers(i, j, answer) {
				return false
			}
		}
	}
	return true
}

// learn takes what an answer to a configuration tells. before is the content that it
// was applied to.
func (m *Memory[T, C]) learn(fm FieldManager, e *encoded, answer T, configSum, before sum) {
	if m == nil || isNil(answer) {
		return
	}
	if e.read(nil) != nil {
		return
	}
	d := decide(m, fm, e, answer)
	for _, q := range d.questions {
		// What is owned now is what the server owns for this configuration. Only
		// an empty object is owned as itself in any shape.
		if q.want == dotted || d.nodes[q.config].n > 0 {
			m.note(q.path, q.want)
		}
	}
	// To apply it again changes nothing: it was just merged and defaulted, or has
	// just changed nothing. Where the answer contradicts the configuration something
	// else is at work.
	unknown := before == sum{} // live lacks managedFields, or there was none
	// Where nobody owns anything the next apply makes somebody the owner of what is there.
	owned := len(answer.GetManagedFields()) > 0
	switch last := m.last(answer, fm); {
	case d.verdict != differs && owned, m.knows(answer, fm, configSum), !unknown && d.content == before,
		unknown && d.content != sum{} && last.config == configSum && last.content == d.content:
		m.remember(answer, fm, configSum, d.content)
	case unknown:
		m.put(answer.GetUID(), fm, seen{config: configSum, content: d.content})
	}
}

func (m *Memory[T, C]) shape(path []byte) shape {
	if m == nil {
		return unknown
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shapes[string(path)]
}

func (m *Memory[T, C]) note(path string, is shape) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(path) > maxShape {
		return
	}
	if _, known := m.shapes[path]; !known && len(m.shapes) >= maxShapes {
		for other := range m.shapes {
			delete(m.shapes, other)
			break
		}
	}
	if m.shapes == nil {
		m.shapes = map[string]shape{}
	}
	m.shapes[path] = is
}

// knows reports whether the configuration is known to change nothing in live, by its
// resourceVersion.
func (m *Memory[T, C]) knows(live T, fm FieldManager, config sum) bool {
	s := m.last(live, fm)
	return s.resourceVersion != "" && s.resourceVersion == live.GetResourceVersion() && s.config == config
}

// recalls reports the same by the content of live: its status, and what others own,
// can have changed.
func (m *Memory[T, C]) recalls(live T, fm FieldManager, config, content sum) bool {
	s := m.last(live, fm)
	return s.resourceVersion != "" && s.content == content && s.config == config && content != sum{}
}

// last is what is remembered of an object.
func (m *Memory[T, C]) last(live T, fm FieldManager) seen {
	if m == nil {
		return seen{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[seenKey{uid: live.GetUID(), manager: fm}]
}

func (m *Memory[T, C]) remember(live T, fm FieldManager, config, content sum) {
	if version := live.GetResourceVersion(); version != "" {
		m.put(live.GetUID(), fm, seen{resourceVersion: version, config: config, content: content})
	}
}

func (m *Memory[T, C]) put(uid types.UID, fm FieldManager, s seen) {
	if m == nil || uid == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := seenKey{uid: uid, manager: fm}
	if _, known := m.seen[key]; !known && len(m.seen) >= max(cmp.Or(m.Objects, 4096), 1) {
		for other := range m.seen {
			delete(m.seen, other)
			break
		}
	}
	if m.seen == nil {
		m.seen = map[seenKey]seen{}
	}
	m.seen[key] = s
}

// random returns the seeds of all sums.
func (m *Memory[T, C]) random() [2]maphash.Seed {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.seeded {
		m.seeded, m.seeds = true, [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	}
	return m.seeds
}

func (m *Memory[T, C]) configSum(config []byte) (s sum) {
	if m == nil {
		return s
	}
	for i, seed := range m.random() {
		s[i] = maphash.Bytes(seed, config)
	}
	return s
}

// contentSum is the sum of all in an object that an apply can depend on.
// That is the owners too: to write a value in other words takes it from them. The
// status is none of it, unless there is one in the configuration.
func (m *Memory[T, C]) contentSum(f *forest, live int32, text string, hasStatus bool, entries []metav1.ManagedFieldsEntry) (s sum) {
	if m == nil {
		return s
	}
	for i, seed := range m.random() {
		var h maphash.Hash
		h.SetSeed(seed)
		write := func(part string) {
			maphash.WriteComparable(&h, len(part))
			_, _ = h.WriteString(part) // it never fails
		}
		// The server orders them by time, and an apply that changes nothing can move that.
		for j := range entries {
			if e := &entries[j]; e.Subresource != "status" && e.FieldsV1 != nil {
				h.Reset()
				write(e.Manager)
				write(string(e.Operation))
				write(e.APIVersion)
				write(e.Subresource)
				_, _ = h.Write(e.FieldsV1.GetRawBytes()) // not copied
				s[i] += h.Sum64()
			}
		}
		h.Reset()
		for j := f.nodes[live].child; j != 0; j = f.nodes[j].next {
			switch n := &f.nodes[j]; {
			case n.key == "status" && !hasStatus:
			case n.key == "metadata":
				for k := n.child; k != 0; k = f.nodes[k].next {
					if n := &f.nodes[k]; n.key != "resourceVersion" && n.key != "generation" {
						write(n.key)
						write(text[n.start:n.end])
					}
				}
			default:
				write(n.key)
				write(text[n.start:n.end])
			}
		}
		s[i] += h.Sum64()
	}
	return s
}
