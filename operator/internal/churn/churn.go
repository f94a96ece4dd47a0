// Package churn finds mistakes that make a controller write its children again and again: a clock, a
// random value or the order of a map in a child, a name that differs in each process, and another
// writer of a child's field or of the status.
//
// It compares the applies of one child for an owner whose spec, labels and annotations are the same. A
// correct controller applies the same configuration then, unless an input other than the owner has
// changed. Such an input changes the child in one call, and not in the next one, so a Finder counts
// only consecutive changes of a configuration.
package churn

import (
	"cmp"
	"context"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/fields"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/mistakes"
)

const (
	changes  = 5                // consecutive calls that change a child
	repeats  = 2                // changes of a child that only sort a list anew, or that only the time explains
	near     = 5 * time.Second  // between the time in a field and that of its apply
	window   = 90 * time.Second // of the consecutive changes: an HPA makes one every 15s
	quiet    = time.Hour        // between two lines about one kind of mistake and of child
	maxLines = 100              // kinds of mistakes and children that have a line

	maxStreaks = 1024     // children
	maxHeld    = 2 << 20  // bytes of their configurations
	maxConfig  = 64 << 10 // bytes of one; a larger one is not compared
	maxText    = 1024     // bytes of a value in a line
)

// The lines of log.
const (
	Order     = "A list of a child has another order in each call: sort what comes from a map or a lister"
	Differs   = "A child differs in each call although its owner is the same: derive it from the owner and from other objects, not from a clock or a random value"
	Rewritten = "The API server stores another value than the applied one: apply the stored value, or change the webhook that rewrites it"
	Contested = "Another writer changes a field of a child after each apply: stop that writer, or let it own the field before you leave it out of the configuration"
	Shared    = "Another writer changes the status after each write: let one controller write it, and set Options.LeaseNamespace if several replicas run"
	Renamed   = "A child was created again under another name: derive the name from the owner, not from a clock, a random value or the process"
)

// A Finder finds mistakes in the children of the calls of an operator. The zero Finder is ready. It is
// safe for concurrent use.
type Finder struct {
	mu      sync.Mutex // guards the rest
	streaks map[child]*streak
	held    int
	logged  map[[2]string]time.Time // by the line and the kind
}

// child names a child of an owner.
type child struct {
	owner types.UID
	kind  string
	types.NamespacedName
}

// streak is the state of a child that the last applies have changed.
type streak struct {
	owner  uint64         // what the owner is
	config map[string]any // the last one; nil if it is too large
	size   int
	at     time.Time // of the last one
	began  time.Time // of count
	count  int       // consecutive changes
	same   int       // of them, those with the configuration of the one before
	orders int       // changes that only sort a list anew
	clocks int       // changes of a field that has the time of the apply
}

// An Apply is an apply of a child that succeeded.
type Apply struct {
	Owner   metav1.Object
	Config  *unstructured.Unstructured // must not be modified later
	Manager string
	Before  metav1.Object // in the API server or the cache; nil if the child was created
	After   metav1.Object // the response; nil if no request was needed
	Changed bool          // the request has changed or created the child
}

// Applied notes an apply.
func (f *Finder) Applied(ctx context.Context, a Apply) {
	id := child{a.Owner.GetUID(), a.Config.GetKind(), types.NamespacedName{Namespace: a.Config.GetNamespace(), Name: a.Config.GetName()}}
	if a.After == nil {
		f.rest(id)
		return
	}
	owner, size := identity(a.Owner), sizeOf(a.Config.Object, maxConfig)
	config := a.Config.Object
	if size > maxConfig {
		config, size = nil, 0
	}
	f.mu.Lock()
	last := f.streaks[id]
	next := &streak{owner: owner, config: config, size: size, at: time.Now(), began: time.Now(), count: 1}
	if last == nil || last.owner != owner {
		f.setLocked(id, next)
		f.mu.Unlock()
		return
	}
	compared := config != nil && last.config != nil
	equal := compared && reflect.DeepEqual(config, last.config)
	next.orders, next.clocks = last.orders, last.clocks
	if time.Since(last.began) <= window {
		next.began, next.count = last.began, last.count+1
		if equal && a.Changed {
			next.same = last.same + 1
		}
	}
	if !a.Changed {
		next.count = 0
	}
	var found differences
	sorted, clock := false, false
	if compared && !equal {
		found = between(last.config, config)
		if sorted = reflect.DeepEqual(canonical(config), canonical(last.config)); sorted {
			next.orders++
		}
		if clock = found.clock(last.at, next.at); clock {
			next.clocks++
		}
	}
	f.setLocked(id, next)
	f.mu.Unlock()

	switch {
	case sorted && next.orders >= repeats:
		f.log(ctx, Order, id, "paths", found.paths())
	case equal:
		if found := rewritten(config, a.After); len(found) > 0 {
			f.log(ctx, Rewritten, id, "paths", found.paths())
		} else if next.same >= changes-1 {
			f.log(ctx, Contested, id, "paths", rewritten(config, a.Before).paths(), "manager", other(a.Before, a.Manager))
		}
	case clock && next.clocks >= repeats, next.count >= changes && next.same == 0:
		f.log(ctx, Differs, id, "paths", found.paths())
	}
}

// rest notes that a child was as configured.
func (f *Finder) rest(id child) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.streaks[id]; s != nil {
		s.count = 0 // and no other: a list can have the same order by chance, and another writer can wait
	}
}

// setLocked stores the state of a child, in place of others' if there are too many.
func (f *Finder) setLocked(id child, s *streak) {
	drop := func(id child) {
		if old := f.streaks[id]; old != nil {
			f.held -= old.size
			delete(f.streaks, id)
		}
	}
	drop(id)
	for other := range f.streaks {
		if len(f.streaks) < maxStreaks && f.held+s.size <= maxHeld {
			break
		}
		drop(other)
	}
	if f.streaks == nil {
		f.streaks = map[child]*streak{}
	}
	f.streaks[id] = s
	f.held += s.size
}

// Created looks for a child that the owner has under another name than that of an apply, which has created a child.
// children has the metadata of the owner's children of this kind. whole returns one of them, or nil if the call names
// it, and false if no other may be read.
func (f *Finder) Created(ctx context.Context, a Apply, children []metav1.Object, whole func(metav1.Object) (metav1.Object, bool)) {
	owner, config := a.Owner, a.Config
	if generation := owner.GetGeneration(); generation == 0 || fields.Read(owner).Observed != generation {
		return // its spec can be the reason
	}
	if config.GroupVersionKind().GroupKind() == (schema.GroupKind{Group: "batch", Kind: "Job"}) {
		return // one for each interval is right
	}
	name := config.GetName()
	for _, o := range children[:min(len(children), maxStreaks)] {
		if !resembles(name, o.GetName()) || o.GetNamespace() != config.GetNamespace() {
			continue
		}
		id := child{owner.GetUID(), config.GetKind(), types.NamespacedName{Namespace: config.GetNamespace(), Name: name}}
		if versions(name, o.GetName()) && !f.applied(id, o.GetName()) {
			continue // a new release of the program can rename its children
		}
		other, more := whole(o)
		if other != nil && appliedBy(other, a.Manager) && holds(config.Object, other, name, o.GetName()) {
			f.log(ctx, Renamed, id, "former", kube.Printable(o.GetName(), maxText))
			return
		}
		if !more {
			return
		}
	}
}

// appliedBy reports whether the manager has applied an object, or the cache does not tell: others can give it the owner.
func appliedBy(obj metav1.Object, manager string) bool {
	entries := obj.GetManagedFields()
	return len(entries) == 0 || slices.ContainsFunc(entries, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == manager && e.Operation == metav1.ManagedFieldsOperationApply
	})
}

// resembles reports whether two names differ only in a part like a number or a random text.
func resembles(a, b string) bool {
	if len(a) != len(b) || a == b {
		return false
	}
	start, end := 0, len(a)
	for a[start] == b[start] {
		start++
	}
	for a[end-1] == b[end-1] {
		end--
	}
	const digits = "0123456789"
	return start > 0 && (strings.ContainsAny(a[start:end], digits) || strings.ContainsAny(b[start:end], digits))
}

// versions reports whether two names that resemble each other differ in a version alone, as x-v1 and x-v2 do: a part of
// letters, and up to three digits.
func versions(a, b string) bool {
	start := 0
	for a[start] == b[start] {
		start++
	}
	word := strings.LastIndexAny(a[:start], "-.") + 1
	first, rest, _ := strings.Cut(a[word:], "-")
	second, same, _ := strings.Cut(b[word:], "-")
	const digits = "0123456789"
	letters := strings.TrimRight(first, digits)
	return rest == same && letters != "" && letters == strings.TrimRight(second, digits) && !strings.ContainsAny(letters, digits) && len(first)-len(letters) <= 3
}

// applied reports whether this process has applied a child of the same owner with the name, as far as the Finder knows.
func (f *Finder) applied(id child, name string) bool {
	id.Name = name
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.streaks[id] != nil
}

// mistake returns the mistake that a line is about.
func mistake(line string) string {
	switch line {
	case Order:
		return mistakes.UnorderedList
	case Rewritten:
		return mistakes.RewrittenField
	case Contested:
		return mistakes.ContestedField
	case Shared:
		return mistakes.ContestedStatus
	case Renamed:
		return mistakes.RenamedChild
	default:
		return mistakes.ChangingChild
	}
}

// log logs a line about a child.
func (f *Finder) log(ctx context.Context, line string, id child, values ...any) {
	kind := [2]string{line, id.kind}
	f.mu.Lock()
	at, known := f.logged[kind]
	due := !known && len(f.logged) < maxLines || known && time.Since(at) >= quiet
	if due {
		if f.logged == nil {
			f.logged = map[[2]string]time.Time{}
		}
		f.logged[kind] = time.Now()
	}
	f.mu.Unlock()
	if due {
		mistakes.Note(ctx, mistake(line))
		name := id.Name
		if id.Namespace != "" {
			name = id.NamespacedName.String()
		}
		klog.FromContext(ctx).Info(line, append([]any{"child", kube.Printable(id.kind+" "+name, maxText)}, values...)...)
	}
}

// identity returns a number that differs if the owner differs in what children are derived from.
func identity(owner metav1.Object) uint64 {
	h := fnv.New64a()
	write := func(texts ...string) {
		for _, text := range texts {
			_, _ = h.Write(strconv.AppendInt(nil, int64(len(text)), 10)) // a hash returns no error
			_, _ = h.Write([]byte(text))
		}
	}
	write(string(owner.GetUID()), strconv.FormatInt(owner.GetGeneration(), 10))
	if owner.GetGeneration() == 0 { // its kind has none
		write(owner.GetResourceVersion())
	}
	for _, m := range []map[string]string{owner.GetLabels(), owner.GetAnnotations()} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			write(key, m[key])
		}
		write("")
	}
	return h.Sum64()
}

// other returns the manager that was the last to write the object, apart from the given one, also by the subresource scale.
func other(obj metav1.Object, manager string) string {
	if obj == nil {
		return ""
	}
	var last metav1.ManagedFieldsEntry
	for _, e := range obj.GetManagedFields() {
		newer := last.Time == nil || e.Time != nil && !e.Time.Before(last.Time)
		if e.Manager != manager && e.Subresource != "status" && newer {
			last = e
		}
	}
	return kube.Printable(cmp.Or(last.Manager, "unknown"), maxText)
}
