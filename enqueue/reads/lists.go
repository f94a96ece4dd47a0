package reads

import (
	"encoding/binary"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// lists has the selectors of all reads, each once, and finds those that select an object. A selector
// stands in a bucket for each value that one of its requirements allows, or in that of a label that it
// forbids. Selectors without such requirements, such as "app!=web", share one bucket. An event looks at that
// bucket, at the buckets of the object's labels, and at those of the forbidden labels that the object lacks.
// Forbidden labels and the selectors in one bucket are looked at one by one. Most of them select the object, so
// their keys run.
type lists struct {
	hasher
	all     map[listName]*list
	byRef   map[uint64]*list
	buckets map[uint64]map[*list]struct{}
	forbids map[scope]map[string]int // the forbidden labels, with the number of their selectors
}

// A scope is what the events of a reader in a namespace, or in all of them, look at.
type scope struct {
	source    uint16
	namespace string
}

type listName struct {
	source          uint16
	namespace, text string // the text is that of textOf
}

// A list is what one or more keys have listed.
type list struct {
	listName
	ref      uint64
	selector labels.Selector
	buckets  []uint64
	forbids  string // the label of its bucket, or ""
}

// bucketName names a bucket. Without a value, any value of the label is meant, and without a label any object.
type bucketName struct {
	source                    uint16
	namespace, label, value   string
	labelled, valued, forbids bool
}

// of returns the list of a selector.
func (l *lists) of(source uint16, namespace string, selector labels.Selector, requirements labels.Requirements) *list {
	name := listName{source, namespace, textOf(requirements)}
	if known := l.all[name]; known != nil {
		return known
	}
	if l.all == nil {
		l.all, l.byRef, l.buckets = map[listName]*list{}, map[uint64]*list{}, map[uint64]map[*list]struct{}{}
		l.forbids = map[scope]map[string]int{}
	}
	name.namespace = strings.Clone(name.namespace)
	made := &list{listName: name, ref: hashOf(l.hasher, name), selector: selector}
	for l.byRef[made.ref] != nil { // a list must have a hash of its own
		made.ref++
	}
	for _, bucket := range witness(name, requirements) {
		hash := hashOf(l.hasher, bucket)
		if l.buckets[hash] == nil {
			l.buckets[hash] = map[*list]struct{}{}
		}
		l.buckets[hash][made] = struct{}{}
		made.buckets = append(made.buckets, hash)
		if bucket.forbids {
			made.forbids = bucket.label
			l.forbid(made, 1)
		}
	}
	l.all[name], l.byRef[made.ref] = made, made
	return made
}

// textOf returns a text that only selectors with the same requirements have. Selectors of labels.SelectorFromSet
// are not validated, so in their String a value such as "web,tier=db" looks like further requirements.
func textOf(requirements labels.Requirements) string {
	var text []byte
	add := func(part string) {
		text = append(binary.AppendUvarint(text, uint64(len(part))), part...)
	}
	for _, r := range requirements {
		values := r.ValuesUnsorted() // a copy
		slices.Sort(values)
		add(string(r.Operator()))
		add(r.Key())
		text = binary.AppendUvarint(text, uint64(len(values)))
		for _, value := range values {
			add(value)
		}
	}
	return string(text)
}

// forbid counts the selectors of a forbidden label.
func (l *lists) forbid(of *list, n int) {
	scope := scope{of.source, of.namespace}
	if l.forbids[scope] == nil {
		l.forbids[scope] = map[string]int{}
	}
	if l.forbids[scope][of.forbids] += n; l.forbids[scope][of.forbids] == 0 {
		delete(l.forbids[scope], of.forbids)
	}
	if len(l.forbids[scope]) == 0 {
		delete(l.forbids, scope)
	}
}

// witness returns the buckets of a selector: each object that it selects is in one of them.
func witness(name listName, requirements labels.Requirements) []bucketName {
	best := []bucketName{{source: name.source, namespace: name.namespace}}
	for _, r := range requirements {
		bucket := bucketName{source: name.source, namespace: name.namespace, label: r.Key(), labelled: true}
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if values := r.ValuesUnsorted(); !best[0].valued || len(values) < len(best) {
				best = best[:0:0]
				for _, value := range values {
					bucket.value, bucket.valued = value, true
					best = append(best, bucket)
				}
			}
		case selection.Exists, selection.GreaterThan, selection.LessThan:
			if !best[0].labelled {
				best = []bucketName{bucket}
			}
		case selection.DoesNotExist:
			if !best[0].labelled && !best[0].forbids {
				bucket.labelled, bucket.forbids = false, true
				best = []bucketName{bucket}
			}
		}
	}
	return best
}

// gone removes the list of ref, if it is one.
func (l *lists) gone(ref uint64) {
	old := l.byRef[ref]
	if old == nil {
		return
	}
	for _, hash := range old.buckets {
		delete(l.buckets[hash], old)
		if len(l.buckets[hash]) == 0 {
			delete(l.buckets, hash)
		}
	}
	if old.forbids != "" {
		l.forbid(old, -1)
	}
	delete(l.all, old.listName)
	delete(l.byRef, ref)
	if len(l.all) == 0 {
		*l = lists{hasher: l.hasher}
	}
}

// selecting appends the ref of each list that selects an object.
func (l *lists) selecting(refs []uint64, source uint16, namespace string, set labels.Set) []uint64 {
	if len(l.all) == 0 {
		return refs
	}
	refs = l.in(refs, source, "", namespace, set)
	if namespace != "" {
		refs = l.in(refs, source, namespace, namespace, set)
	}
	return refs
}

// in is selecting for the lists of one namespace, or for those of all.
func (l *lists) in(refs []uint64, source uint16, of, namespace string, set labels.Set) []uint64 {
	bucket := bucketName{source: source, namespace: of}
	refs = l.bucket(refs, bucket, namespace, set)
	bucket.forbids = true
	for label := range l.forbids[scope{source, of}] {
		if !set.Has(label) {
			bucket.label = label
			refs = l.bucket(refs, bucket, namespace, set)
		}
	}
	bucket.forbids, bucket.labelled = false, true
	for label, value := range set {
		bucket.label, bucket.value, bucket.valued = label, "", false
		refs = l.bucket(refs, bucket, namespace, set)
		bucket.value, bucket.valued = value, true
		refs = l.bucket(refs, bucket, namespace, set)
	}
	return refs
}

func (l *lists) bucket(refs []uint64, name bucketName, namespace string, set labels.Set) []uint64 {
	for list := range l.buckets[hashOf(l.hasher, name)] {
		if list.source == name.source && (list.namespace == "" || list.namespace == namespace) && list.selector.Matches(set) {
			refs = append(refs, list.ref)
		}
	}
	return refs
}
