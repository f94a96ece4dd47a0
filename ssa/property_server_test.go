package ssa_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

var applies = flag.Int("applies", 250, "how many objects TestServerAgrees generates")

const containers = `[{"name":"main","image":"i:1"}]`

// world is what the test runs in.
type world struct {
	dynamic   dynamic.Interface
	mapper    meta.RESTMapper
	namespace string
}

func decode[T any](b []byte) (*T, error) {
	v := new(T)
	return v, json.Unmarshal(b, v)
}

// subject decides about configurations of a kind.
type subject interface {
	// body is the configuration as the client sends it.
	body(config []byte) []byte
	// skips reports whether the free function makes no request, and why it would.
	skips(ctx context.Context, config, live []byte) (bool, string, error)
	// excused reports whether the server alone can tell that nothing changes.
	excused(why string, config, live []byte) bool
	// changed is Memory.ApplyChanged. answer is nil if it made no request.
	changed(ctx context.Context, to dynamic.ResourceInterface, config, live []byte) (answer *unstructured.Unstructured, why string, err error)
}

type subjectOf[T interface {
	metav1.Object
	runtime.Object
}, C any] struct {
	extract func(T, string) (C, error)
	config  func([]byte) (C, error)
	object  func([]byte) (T, error)
	memory  *ssa.Memory[T, C]
}

// typed is the subject of a generated client.
func typed[O, C any, T interface {
	*O
	metav1.Object
	runtime.Object
}](extract func(T, string) (*C, error)) func() subject {
	return func() subject {
		return subjectOf[T, *C]{
			extract: extract, config: decode[C], memory: &ssa.Memory[T, *C]{},
			object: func(b []byte) (T, error) { return decode[O](b) },
		}
	}
}

func untyped() subject {
	parse := func(b []byte) (*unstructured.Unstructured, error) {
		u := &unstructured.Unstructured{}
		return u, u.UnmarshalJSON(b)
	}
	type of = subjectOf[*unstructured.Unstructured, *unstructured.Unstructured]
	return of{config: parse, object: parse, memory: &ssa.Memory[*unstructured.Unstructured, *unstructured.Unstructured]{}}
}

// wire sends configurations as all clients of client-go do, and keeps the answer.
type wire[T, C any] struct {
	to     dynamic.ResourceInterface
	object func([]byte) (T, error)
	answer *unstructured.Unstructured
}

var errProbe = errors.New("an apply")

func (w *wire[T, C]) Apply(ctx context.Context, config C, opts metav1.ApplyOptions) (answer T, err error) {
	if w.to == nil {
		return answer, errProbe
	}
	b := must2(json.Marshal(config))
	name := must2(decode[metav1.PartialObjectMetadata](b)).Name
	if w.answer, err = w.to.Patch(ctx, name, types.ApplyPatchType, b, opts.ToPatchOptions()); err != nil {
		return answer, err
	}
	return w.object(must2(w.answer.MarshalJSON()))
}

func (s subjectOf[T, C]) body(config []byte) []byte {
	return must2(json.Marshal(must2(s.config(config))))
}

func (s subjectOf[T, C]) skips(ctx context.Context, config, live []byte) (bool, string, error) {
	ctx, why := because(ctx)
	l := must2(s.object(live))
	before := l.DeepCopyObject()
	_, _, err := ssa.ApplyChanged(ctx, manager, (&wire[T, C]{}).Apply, must2(s.config(config)), l, s.extract)
	if !apiequality.Semantic.DeepEqual(before, l) {
		return false, "", errors.New("live was changed")
	}
	if errors.Is(err, errProbe) {
		return false, *why, nil
	}
	return err == nil, "", err
}

func (s subjectOf[T, C]) changed(ctx context.Context, to dynamic.ResourceInterface, config, live []byte) (*unstructured.Unstructured, string, error) {
	ctx, why := because(ctx)
	var l T
	if live != nil {
		l = must2(s.object(live))
	}
	w := &wire[T, C]{to: to, object: s.object}
	_, applied, err := s.memory.ApplyChanged(ctx, manager, w.Apply, must2(s.config(config)), l, s.extract)
	if applied != (err == nil && w.answer != nil) {
		return nil, "", fmt.Errorf("applied = %v, answer %v, error %w", applied, w.answer, err)
	}
	return w.answer, *why, err
}

// because returns a context whose logger tells why an apply was made.
func because(ctx context.Context) (context.Context, *string) {
	why := new(string)
	log := funcr.New(func(_, args string) {
		if _, rest, ok := strings.Cut(args, `"because"=`); ok {
			*why = rest
		}
	}, funcr.Options{Verbosity: 4})
	return logr.NewContext(ctx, log), why
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// tallies counts what happened.
type tallies struct {
	mu     sync.Mutex
	counts map[string]int
}

func (t *tallies) add(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[what]++
}

// TestServerAgrees holds ApplyChanged, with and without a memory, against what the
// API server does, for generated objects and configurations of ten kinds, with other
// writers between.
//
// Proves A4.
func TestServerAgrees(t *testing.T) {
	cfg := testserver.Config(t)
	cfg.WarningHandler = rest.NoWarnings{}
	dyn, err := dynamic.NewForConfig(cfg)
	must(err)
	for _, kind := range []string{"Schemed", "Schemaless"} {
		testserver.InstallCRD(t, definition(kind))
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, f := range families {
		scope := meta.RESTScopeNamespace
		if f.cluster {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(f.gvk, scope)
	}
	w := world{dynamic: dyn, mapper: mapper, namespace: testserver.Namespace(t)}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	tally := &tallies{counts: map[string]int{}}
	type job struct {
		f *family
		s subject
		n int
	}
	jobs := make(chan job)
	var wg sync.WaitGroup
	var failures atomic.Int64
	for range 8 {
		wg.Go(func() {
			for j := range jobs {
				if failures.Load() > 10 {
					continue
				}
				r := rand.New(rand.NewPCG(seed, uint64(j.n)))
				if err := w.life(t.Context(), r, j.f, j.s, fmt.Sprintf("%s-%d", strings.ToLower(j.f.name), j.n), tally); err != nil {
					failures.Add(1)
					t.Errorf("%s %d: %v", j.f.name, j.n, err)
				}
			}
		})
	}
	n := 0
	for i := range families {
		f := &families[i]
		subjects := []subject{untyped()}
		if f.typed != nil {
			both := f.typed()
			subjects = []subject{both, both, untyped()}
		}
		for k := range *applies * f.share / 100 {
			n++
			jobs <- job{f: f, s: subjects[k%len(subjects)], n: n}
		}
	}
	close(jobs)
	wg.Wait()
	for _, what := range slices.Sorted(maps.Keys(tally.counts)) {
		t.Logf("%7d %s", tally.counts[what], what)
	}
}

// life is the life of an object: it is created, and then configurations change and
// others write.
func (w world) life(ctx context.Context, r *rand.Rand, f *family, s subject, name string, tally *tallies) error {
	mapping, err := w.mapper.RESTMapping(f.gvk.GroupKind(), f.gvk.Version)
	must(err)
	var raw dynamic.ResourceInterface = w.dynamic.Resource(mapping.Resource)
	if !f.cluster {
		raw = w.dynamic.Resource(mapping.Resource).Namespace(w.namespace)
	}
	label := f.name
	if _, ok := s.(subjectOf[*unstructured.Unstructured, *unstructured.Unstructured]); ok && f.typed != nil {
		label += ", unstructured"
	}
	d := newDraft(r, f, name, w.namespace)
	objectName := must2(decode[metav1.PartialObjectMetadata](d.json())).Name
	var live *unstructured.Unstructured
	for attempt := 0; ; attempt++ {
		if live, _, err = s.changed(ctx, raw, d.json(), nil); err == nil && live != nil {
			break
		}
		if err != nil && !apierrors.IsInvalid(err) || attempt > 20 {
			return fmt.Errorf("create %s: %w", d.json(), err)
		}
		tally.add("refused by the server")
		d = newDraft(r, f, name, w.namespace)
	}
	tally.add("objects")
	for round := range 3 {
		next, what := d, "again"
		if round > 0 {
			if r.IntN(3) > 0 {
				next = d.mutated(r, r.IntN(3))
				what = "mutated"
			}
			if r.IntN(2) == 0 {
				other, answer, err := w.meddle(ctx, r, raw, d, objectName, round)
				switch {
				case err == nil && answer != nil:
					live = answer
				case err != nil && !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) && !apierrors.IsBadRequest(err):
					return fmt.Errorf("%s: %w", other, err)
				}
				what += ", " + other
			}
		}
		configuration, before := next.json(), must2(live.MarshalJSON())
		skips, why, err := s.skips(ctx, configuration, before)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		after, memoryWhy, err := s.changed(ctx, raw, configuration, before)
		applied := err == nil && after != nil
		if err == nil && !applied {
			after, err = raw.Patch(ctx, objectName, types.ApplyPatchType, s.body(configuration), metav1.PatchOptions{FieldManager: string(manager), Force: ptr(true)})
		}
		if err != nil {
			if skips || !apierrors.IsInvalid(err) {
				return fmt.Errorf("%s: skipped without a memory %v: %w", what, skips, err)
			}
			tally.add("refused by the server")
			continue
		}
		moved := content(after) != content(live)
		tally.add(fmt.Sprintf("decisions, the server changes something: %v", moved))
		report := func(text string) error {
			return fmt.Errorf("%s: %s (%s; %s)\nconfig %s\nlive   %s\nafter  %s", what, text, why, memoryWhy, s.body(configuration), before, must2(after.MarshalJSON()))
		}
		excused := func(why string) bool { return s.excused(why, s.body(configuration), before) }
		switch {
		case moved && skips:
			return report("skipped without a memory, and the server changes something")
		case moved && !applied:
			return report("skipped with a memory, and the server changes something")
		case round == 0 && moved && !nothing.Match(s.body(configuration)):
			// After a configuration of nothing nobody owns anything, and the next apply can change that.
			return report("applied twice, and changed twice")
		case !moved && !skips && !excused(why):
			return report("applied without a memory, though nothing changes")
		case !moved && applied && !excused(memoryWhy):
			return report("applied with a memory, though nothing changes")
		}
		if !moved && after.GetResourceVersion() != live.GetResourceVersion() && f.gvk.Kind != "CustomResourceDefinition" {
			// The server writes without changing anything, and does so again and
			// again, where it does not store what is applied literally.
			if !empties.Match(s.body(configuration)) && !excused(why) {
				return report("the resourceVersion moved, and nothing else")
			}
			tally.add(label + ": the resourceVersion moved, and nothing else")
		}
		if !moved && !skips {
			tally.add(label + ": applied without a memory, though nothing changes: " + why)
			tally.add("applied without a memory, though nothing changes")
		}
		if !moved && applied {
			tally.add("applied with a memory, though nothing changes")
			// Once is enough.
			again, againWhy, err := s.changed(ctx, raw, configuration, must2(after.MarshalJSON()))
			if err != nil || again != nil {
				return fmt.Errorf("%s: applied again with a memory after an apply that changed nothing: %s, error %w\nconfig %s\nlive   %s", what, againWhy, err, s.body(configuration), must2(after.MarshalJSON()))
			}
		}
		live, d = after, next
	}
	return nil
}

// empties matches what the server may leave out: what is empty or zero, and stringData.
var empties = regexp.MustCompile(`\{\}|\[\]|null|""|false|:0[,}]|stringData`)

// nothing matches a configuration after which nobody may own anything.
var nothing = regexp.MustCompile(`\{\}|\[\]|null`)

// Fields that are owned as a whole and have defaults inside, and those of quantities.
var (
	defaulted  = regexp.MustCompile(`\.(fieldRef|roleRef|subjects\[\]|ports\[\]|ingress\[\]\.ports\[\]|httpGet)$`)
	quantities = regexp.MustCompile(`\.(cpu|memory|sizeLimit|averageValue)$`)
)

// excused reports whether only the server can tell whether an apply changes anything:
// the reason must hold for the configuration and live.
func (s subjectOf[T, C]) excused(why string, config, live []byte) bool {
	why = strings.Trim(why, `"`)
	untyped := s.extract == nil
	path, reason := "", why
	if i := strings.LastIndex(why, ": "); i >= 0 {
		path, reason = why[:i], why[i+2:]
	}
	has := func(values ...string) bool {
		return slices.ContainsFunc(valuesAt(config, path), func(v string) bool { return slices.Contains(values, v) })
	}
	switch reason {
	case "live has no managedFields":
		return len(must2(decode[metav1.PartialObjectMetadata](live)).ManagedFields) == 0
	case "the schema is not known":
		return untyped
	case "empty, and only the API server knows whether it is atomic":
		return has(`{}`)
	case "more is there than is applied":
		return defaulted.MatchString(path)
	case "stored in other words":
		return untyped && quantities.MatchString(path)
	case "empty, and not there":
		return untyped && has(`""`, `0`, `false`, `{}`)
	case "an empty list":
		return has(`[]`)
	case "null":
		return has(`null`)
	case "owned in another shape":
		// Members of a map that are maps themselves are owned as themselves too.
		return untyped && strings.Contains(string(live), `"f:`+path[strings.LastIndex(path, ".")+1:]+`":{".":{}`)
	case "not stored, and owned by others too":
		return strings.Contains(string(live), `"other"`) || strings.Contains(string(live), `"editor"`)
	}
	return false
}

// valuesAt returns the JSON of the values at a path, in any item of its lists.
func valuesAt(config []byte, path string) []string {
	at := []json.RawMessage{config}
	for _, name := range strings.Split(strings.TrimPrefix(strings.ReplaceAll(path, "[]", ".[]"), "."), ".") {
		var next []json.RawMessage
		for _, b := range at {
			if name == "[]" {
				var l []json.RawMessage
				_ = json.Unmarshal(b, &l)
				next = append(next, l...)
				continue
			}
			var o map[string]json.RawMessage
			_ = json.Unmarshal(b, &o)
			if v, ok := o[name]; ok {
				next = append(next, v)
			}
		}
		at = next
	}
	var values []string
	for _, b := range at {
		values = append(values, string(b))
	}
	return values
}

// content is all of an object that a change can be a change of: its fields and who
// owns them. The test writes the status beside the applies.
func content(u *unstructured.Unstructured) string {
	u = u.DeepCopy()
	entries := slices.DeleteFunc(u.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Subresource == "status" })
	for i := range entries {
		entries[i].Time = nil
	}
	slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return strings.Compare(a.Manager+string(a.Operation), b.Manager+string(b.Operation))
	})
	u.SetManagedFields(entries)
	u.SetResourceVersion("")
	u.SetGeneration(0)
	delete(u.Object, "status")
	return string(must2(u.MarshalJSON()))
}

// meddle lets somebody else write.
func (w world) meddle(ctx context.Context, r *rand.Rand, raw dynamic.ResourceInterface, d draft, name string, round int) (what string, answer *unstructured.Unstructured, err error) {
	path, variant := d.one(r)
	content := map[string]any{}
	put(content, path, variant)
	switch r.IntN(6) {
	case 0:
		content := d.head()
		put(content, path, variant)
		answer, err = raw.Patch(ctx, name, types.ApplyPatchType, must2(json.Marshal(content)), metav1.PatchOptions{FieldManager: "other", Force: ptr(true)})
		return "applied by another", answer, err
	case 1:
		// The same manager, from another client that does not leave out what is empty.
		answer, err = raw.Patch(ctx, name, types.ApplyPatchType, d.mutated(r, 1).json(), metav1.PatchOptions{FieldManager: string(manager), Force: ptr(true)})
		return "applied by the same manager", answer, err
	case 2:
		if variant == "" {
			put(content, path, "null")
		}
		answer, err = raw.Patch(ctx, name, types.MergePatchType, must2(json.Marshal(content)), metav1.PatchOptions{FieldManager: string(manager)})
		return "patched by the same manager", answer, err
	case 3:
		if d.f.status == "" {
			return "nothing", nil, nil
		}
		answer, err = raw.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, d.f.status, round), metav1.PatchOptions{FieldManager: "other"}, "status")
		return "status", answer, err
	default:
		if variant == "" {
			put(content, path, "null")
		}
		answer, err = raw.Patch(ctx, name, types.MergePatchType, must2(json.Marshal(content)), metav1.PatchOptions{FieldManager: "editor"})
		return "patched by another", answer, err
	}
}

func must2[T any](v T, err error) T {
	must(err)
	return v
}

func ptr[T any](v T) *T { return &v }
