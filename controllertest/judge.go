package controllertest

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

// A reference holds the common operations, states and events of the runs without faults.
type reference struct {
	operations []operation
	skipped    []string
	rests      []checkpoint
	masked     map[string]bool // paths of rests that differ between the runs
	added      map[string]int  // the maximum of events of a run, by masked object
	deleted    map[string]int
}

// judge compares a complete run with the reference. A former version has no faults, so if it makes another state than in
// the runs without faults, the run has no outcome.
func (r *run) judge(ref *reference) {
	for n, have := range r.rests[:min(r.x.scenario.formerSteps(), len(r.rests))] {
		if diff := differences(ref.rests[n].state, have.state, ref.masked, n, 1); len(diff) > 0 && !have.repeats && !have.hurried {
			r.doubt("after step %q the former version, which has no faults, has made another state than without the plan: %s", have.step, diff[0])
			return
		}
	}
	for n, have := range r.rests {
		if have.repeats || have.hurried || !r.comparable(n, ref) {
			continue
		}
		for path, order := range have.state {
			now, is := order.(orderOf)
			without, was := ref.rests[n].state[path].(orderOf)
			if is && was && now.set == without.set && now.order != without.order && !ref.masked[strconv.Itoa(n)+" "+path] {
				r.x.reordered(strings.TrimSuffix(path, inOrder), r.plan)
			}
		}
		// Each field is a finding of its own, and an object that is absent or surplus is one, so
		// that each can be accepted and confirmed.
		for diff := differences(ref.rests[n].state, have.state, ref.masked, n, maxDifferences); len(diff) > 0; {
			object, field := about(diff[0])
			end := 1
			for ; end < len(diff); end++ {
				// The elements of a list are one field.
				if o, f := about(diff[end]); o != object || numbers.ReplaceAllString(f, "N") != numbers.ReplaceAllString(field, "N") && field != existence {
					break
				}
			}
			lines := diff[:end]
			if end > shownDifferences {
				lines = append(slices.Clone(diff[:shownDifferences]), more)
			}
			r.add(Finding{Oracle: EndState, Object: object, Field: field, Text: fmt.Sprintf("after step %q the state differs from that without faults:\n%s", have.step, strings.Join(lines, "\n"))})
			diff = diff[end:]
		}
	}
	added, deleted := r.eventCounts(false)
	again, drifted := 1, map[string]int{} // the deletions by the user of the plan
	for _, j := range r.plan {
		if j.kind == UserRecreate || j.kind.scope() == madeObject {
			again++
		}
		if j.kind == DriftDelete {
			drifted[j.about]++
		}
	}
	for _, c := range []struct {
		verb      string
		have, ref map[string]int
	}{{"created", added, ref.added}, {"deleted", deleted, ref.deleted}} {
		for _, name := range slices.Sorted(maps.Keys(c.have)) {
			most := c.ref[name] * again
			if c.verb == "deleted" {
				most = max(most, c.ref[name]+drifted[tidy(name)])
			}
			if c.have[name] > most {
				r.add(Finding{Oracle: Events, Object: name, Field: c.verb, Text: fmt.Sprintf("%s was %s %d times, without faults %d times", name, c.verb, c.have[name], most)})
			}
		}
	}
}

// comparable reports whether the state after a step must be the expected one. If the plan
// deletes an object, creates it again as the user wrote it, or has begun a step early, the
// state can contain another history, such as a count of the rollouts. Only the last state is
// the same.
func (r *run) comparable(n int, ref *reference) bool {
	last := len(ref.rests) - 1
	hurried := slices.ContainsFunc(r.rests[:min(n, len(r.rests))], func(c checkpoint) bool { return c.hurried })
	return n == last || n < last && !r.plan.has(UserDelete) && !r.plan.has(UserRecreate) && !hurried
}

// eventCounts counts creations and deletions by masked object, with or without the
// World's. An object that was created after its last owner was deleted does not count: the
// watches of owners and children are not ordered, so a correct controller may see first
// that the child is gone. The garbage collector deletes such an object again.
func (r *run) eventCounts(all bool) (added, deleted map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := map[types.UID]uint64{} // by revision of the deletion
	for _, e := range r.history {
		if e.object != nil && e.kind == watch.Deleted {
			gone[e.object.GetUID()] = e.revision
		}
	}
	late := map[types.UID]bool{} // their owners were deleted before, or are late themselves
	byRevision := func(a, b event) int { return cmp.Compare(a.revision, b.revision) }
	for _, e := range slices.SortedStableFunc(slices.Values(r.history), byRevision) { // owners first
		if e.object != nil && e.kind == watch.Added {
			owners := e.object.GetOwnerReferences()
			late[e.object.GetUID()] = len(owners) > 0 && !slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool {
				at, deleted := gone[o.UID]
				return !late[o.UID] && (!deleted || at > e.revision)
			})
		}
	}
	added, deleted = map[string]int{}, map[string]int{}
	for _, e := range r.history {
		if e.object == nil || late[e.object.GetUID()] || !all && r.world.hasMadeLocked(e) {
			continue
		}
		name := r.maskedKeyLocked(e.key)
		switch e.kind {
		case watch.Added:
			added[name]++
		case watch.Deleted:
			deleted[name]++
		}
	}
	return added, deleted
}

func (r *run) maskedKeyLocked(k objectKey) string {
	name := k.resource + "/" + r.maskLocked(k.name)
	if k.namespace != "" && k.namespace != r.env.Namespace {
		name = k.resource + "/" + r.maskLocked(k.namespace) + "/" + r.maskLocked(k.name)
	}
	return name
}

// checkInvariants replays the observed events in the order of revisions. The states within a gap
// are unknown, so the next state to judge is the list at its end.
func (r *run) checkInvariants() {
	if len(r.x.scenario.Invariants) == 0 || r.plan.has(DriftDelete) || r.plan.has(DriftEdit) {
		return // the plan's user may break an invariant
	}
	r.mu.Lock()
	history, gaps := slices.Clone(r.history), slices.Clone(r.gaps)
	r.mu.Unlock()
	// Two events of one revision are a write and an external call that it caused.
	slices.SortStableFunc(history, func(a, b event) int {
		switch {
		case a.revision < b.revision:
			return -1
		case a.revision > b.revision:
			return 1
		case a.object != nil && b.object == nil:
			return -1
		case a.object == nil && b.object != nil:
			return 1
		}
		return 0
	})
	s := &State{namespace: r.env.Namespace, objects: map[objectKey]*unstructured.Unstructured{}}
	broken := map[string]bool{}
	for n, e := range history {
		switch {
		case e.object == nil:
			s.cloud = e.cloud
		case e.kind != watch.Deleted:
			s.objects[e.key] = e.object
		case s.objects[e.key] != nil && s.objects[e.key].GetUID() == e.object.GetUID():
			delete(s.objects, e.key) // after a gap, the next of its name can have come before it
		}
		if n+1 < len(history) && slices.ContainsFunc(gaps, func(g gap) bool { return e.revision > g.after && history[n+1].revision <= g.end }) {
			continue
		}
		for _, invariant := range r.x.scenario.Invariants {
			if broken[invariant.Name] {
				continue
			}
			if err := invariant.Check(s.clone()); err != nil {
				broken[invariant.Name] = true
				r.add(Finding{Oracle: Invariance, Field: invariant.Name, Text: fmt.Sprintf("%s: %v (at version %d)", invariant.Name, err, e.revision)})
			}
		}
	}
}

// normalizeLocked returns the state as values by path, without versions, times, generated
// names and other values that differ in each run.
func (r *run) normalizeLocked(s *State) map[string]any {
	masks := r.masksLocked(s)
	flat := map[string]any{}
	for name, objects := range r.objectsLocked(s, masks) {
		slices.SortFunc(objects, func(a, b map[string]any) int { return strings.Compare(text(a), text(b)) })
		for n, object := range objects {
			path := name
			if len(objects) > 1 {
				path += fmt.Sprintf(" (%d of %d)", n+1, len(objects))
			}
			flat[path] = "exists"
			for k, v := range object {
				flat[path+" "+k] = v
			}
		}
	}
	resources := map[string][]string{}
	for _, c := range s.cloud {
		name := "cloud/" + masks(maskHashes(c.Name))
		resources[name] = append(resources[name], masks(maskHashes(maskTimes(text(c.Tags)))))
	}
	for name, tags := range resources {
		slices.Sort(tags)
		flat[name] = fmt.Sprintf("%d with tags %s", len(tags), strings.Join(tags, ", "))
	}
	return flat
}

// masksLocked returns a function that replaces what differs from run to run in a text: uids,
// generated names, the namespace, and ids of the cloud.
func (r *run) masksLocked(s *State) func(string) string {
	present := map[types.UID]objectKey{}
	for key, obj := range s.objects {
		present[obj.GetUID()] = key
	}
	var replace []string
	for uid, key := range r.uids {
		name := "<uid of " + r.maskedKeyLocked(key) + ">"
		if _, ok := present[uid]; !ok {
			name = "<uid of an earlier " + r.maskedKeyLocked(key) + ">"
		}
		replace = append(replace, string(uid), name)
	}
	for _, name := range r.generatedLocked() {
		replace = append(replace, name, r.maskLocked(name))
	}
	replace = append(replace, r.env.Namespace, "$ns")
	replacer := strings.NewReplacer(replace...)
	ids := map[string]string{}
	for id, of := range r.ids {
		ids[id] = "<id of an earlier " + replacer.Replace(of) + ">"
	}
	for _, c := range s.cloud {
		if c.ID == c.Name {
			continue // the controller chose it
		}
		ids[c.ID] = "<id of " + replacer.Replace(c.Name) + ">"
	}
	return func(s string) string {
		s = replacer.Replace(s)
		return maskIDs(s, func(id string) string { return cmp.Or(ids[id], id) })
	}
}

// objectsLocked returns the fields of the objects by their masked names, of which several objects
// can have one.
func (r *run) objectsLocked(s *State, masks func(string) string) map[string][]map[string]any {
	byName := map[string][]map[string]any{}
	for key, obj := range s.objects {
		if r.rubbishLocked(key) || r.world.hasCreatedLocked(obj) {
			continue
		}
		o, unmasked := obj.DeepCopy(), map[string]any{}
		if r.x.scenario.Mask != nil {
			flatten("", o.Object, 0, masks, unmasked)
			r.x.scenario.Mask(o)
		}
		if o.Object == nil {
			continue
		}
		generation := o.GetGeneration()
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "deletionTimestamp", "selfLink"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field)
		}
		object := map[string]any{}
		flatten("", o.Object, generation, masks, object)
		if r.x.scenario.Mask != nil {
			maps.DeleteFunc(object, func(path string, v any) bool { return v == any(struct{}{}) && unmasked[path] != v })
		}
		name := r.maskedKeyLocked(key)
		byName[name] = append(byName[name], object)
	}
	return byName
}

// flatten lists the leaves of an object by path.
func flatten(path string, v any, generation int64, masks func(string) string, into map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		// An empty object has a meaning: a network policy with the rule {} allows all. An empty status equals an
		// absent one, and so do empty metadata and annotations.
		if len(v) == 0 && path != ".status" && !strings.HasSuffix(path, ".metadata") && !strings.HasSuffix(path, ".annotations") {
			into[path] = struct{}{} // printed as {}
		}
		for k, inner := range v {
			if k == editAnnotation {
				continue // a controller may copy annotations, for example to a template
			}
			// The lag is compared, not the number of changes of the spec.
			if n, ok := inner.(int64); ok && k == "observedGeneration" && generation > 0 {
				inner = "<of the present generation>"
				if n != generation {
					inner = "<of an earlier generation>"
				}
			}
			flatten(path+"."+masks(k), inner, generation, masks, into)
		}
	case []any:
		flattenList(path, v, generation, masks, into)
	case string:
		into[path] = masks(maskTimes(v))
	case int64, float64:
		// Two runs may have the same time by chance.
		if s := fmt.Sprint(v); maskTimes(s) != s {
			into[path] = theTime
			return
		}
		into[path] = v
	default:
		into[path] = v
	}
}

// flattenList lists the leaves of a list. Elements with a name are compared by name. The others
// are compared as a set, and their order apart, because most controllers list in the order of a map or
// a cache.
func flattenList(path string, list []any, generation int64, masks func(string) string, into map[string]any) {
	type element struct {
		text   string
		leaves map[string]any
	}
	var set []element
	scalars := true
	seen := map[string]int{}
	for _, inner := range list {
		leaves := map[string]any{}
		flatten("", inner, generation, masks, leaves)
		name := ""
		if m, ok := inner.(map[string]any); ok {
			scalars = false
			for _, key := range []string{"type", "name", "uid"} {
				if s, ok := m[key].(string); ok {
					name = masks(s)
					break
				}
			}
		}
		if name == "" {
			_, nested := inner.([]any)
			scalars = scalars && !nested
			set = append(set, element{text(leaves), leaves})
			continue
		}
		if seen[name]++; seen[name] > 1 {
			name += fmt.Sprintf(" (%d)", seen[name]) // paths are unique
		}
		for leaf, v := range leaves {
			into[path+"["+name+"]"+leaf] = v
		}
	}
	if len(set) == 0 {
		return
	}
	var order []string
	for _, e := range set {
		order = append(order, e.text)
	}
	slices.SortFunc(set, func(a, b element) int { return strings.Compare(a.text, b.text) })
	into[path+inOrder] = orderOf{digest(slices.Sorted(slices.Values(order))), digest(order)}
	if scalars { // one field, because a surplus element would shift all others
		var values []any
		for _, e := range set {
			values = append(values, e.leaves[""])
		}
		into[path] = text(values)
		return
	}
	for n, e := range set {
		for leaf, v := range e.leaves {
			into[fmt.Sprintf("%s[%d]%s", path, n, leaf)] = v
		}
	}
}

// orderOf is the order of a list. Two lists with the same elements have equal sets.
type orderOf struct{ set, order [sha256.Size]byte }

func digest(texts []string) [sha256.Size]byte { return sha256.Sum256([]byte(text(texts))) }

// inOrder is the end of the path of the order of a list. A different order is no finding.
const inOrder = " in order"

// maskTimes replaces times in a text: those of RFC 3339, and Unix times of about now.
func maskTimes(s string) string {
	if len(s) < len("1700000000") {
		return s
	}
	return times.ReplaceAllStringFunc(s, func(s string) string {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			for ; n >= 1e12; n /= 1000 { // milliseconds and less
			}
			if about := time.Since(time.Unix(n, 0)); about.Abs() > aboutNow {
				return s
			}
		}
		return theTime
	})
}

const (
	theTime  = "<time>"
	aboutNow = 400 * 24 * time.Hour
)

var times = regexp.MustCompile(`\b(?:[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})|[0-9]{10}(?:[0-9]{3}){0,3})\b`)

const (
	maxDifferences   = 2_000 // that are found
	shownDifferences = 20    // lines of a finding, and findings of a run
)

// differences lists the paths with different values in two states, up to a limit.
func differences(want, have map[string]any, masked map[string]bool, rest, limit int) []string {
	var diff []string
	union := maps.Clone(want)
	maps.Copy(union, have)
	for _, path := range slices.Sorted(maps.Keys(union)) {
		if masked[strconv.Itoa(rest)+" "+path] || strings.HasSuffix(path, inOrder) || reflect.DeepEqual(want[path], have[path]) {
			continue
		}
		w, inWant := want[path]
		h, inHave := have[path]
		ws, hs := shown(path, fmt.Sprint(w)), shown(path, fmt.Sprint(h))
		switch {
		case !inWant:
			diff = append(diff, fmt.Sprintf("  + %s: %s", path, hs))
		case !inHave:
			diff = append(diff, fmt.Sprintf("  - %s: %s", path, ws))
		default:
			diff = append(diff, fmt.Sprintf("  ~ %s: %s, without faults %s", path, hs, ws))
		}
		if len(diff) == limit {
			return append(diff, more)
		}
	}
	return diff
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

func sameResource(a, b cloud.Resource) bool { return reflect.DeepEqual(a, b) }

func describe(resources []cloud.Resource) string {
	parts := make([]string, len(resources))
	for n, c := range resources {
		parts[n] = fmt.Sprintf("%s (%s, token %q, tags %s)", c.ID, c.Name, c.Token, text(c.Tags))
	}
	return fmt.Sprintf("holds %d: %s", len(parts), strings.Join(parts, ", "))
}

func revision(obj *unstructured.Unstructured) uint64 { return parseRevision(obj.GetResourceVersion()) }

// parseRevision returns a resource version as a revision of etcd, so that versions of
// different resources can be compared. kube-apiserver uses revisions of one etcd, unless
// it is configured with several.
func parseRevision(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
