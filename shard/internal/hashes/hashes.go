// Package hashes has the hash and the text of the API server's shard selectors (KEP-5866).
package hashes

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// MaxShards is the highest number of shards. Its longest selector is within the limits of the
// API server.
const MaxShards = 1024

// The keys of selectors.
const (
	ByUID       = "object.metadata.uid"
	ByNamespace = "object.metadata.namespace"
)

// Span is a range of hashes with both ends.
type Span struct{ First, Last uint64 }

// Selector is a parsed ShardSelector.
type Selector struct {
	Key   string
	Spans []Span // ascending, and they do not touch
}

// String returns the text that the API server parses.
func (s Selector) String() string {
	var b strings.Builder
	for i, r := range s.Spans {
		if i > 0 {
			b.WriteString(" || ")
		}
		end := "10000000000000000"
		if r.Last < math.MaxUint64 {
			end = fmt.Sprintf("%016x", r.Last+1)
		}
		fmt.Fprintf(&b, "shardRange(%s, '0x%016x', '0x%s')", s.Key, r.First, end)
	}
	return b.String()
}

// Has reports whether the selector selects a hash.
func (s Selector) Has(h uint64) bool {
	i, found := slices.BinarySearchFunc(s.Spans, h, func(r Span, h uint64) int { return cmp.Compare(r.First, h) })
	return found || i > 0 && h <= s.Spans[i-1].Last
}

// Parse parses what String returns. Other spellings, which the API server may accept, are
// errors.
func Parse(text string) (Selector, error) {
	var s Selector
	for part := range strings.SplitSeq(text, " || ") {
		if len(s.Spans) == MaxShards {
			return Selector{}, fmt.Errorf("it has more than %d ranges", MaxShards)
		}
		var key, first, end string
		rest, ok := strings.CutPrefix(part, "shardRange(")
		if ok {
			key, rest, ok = strings.Cut(rest, ", '0x")
		}
		if ok {
			first, rest, ok = strings.Cut(rest, "', '0x")
		}
		if ok {
			end, rest, ok = strings.Cut(rest, "')")
		}
		if !ok || rest != "" || key != ByUID && key != ByNamespace || s.Key != "" && key != s.Key {
			return Selector{}, fmt.Errorf("%q is not a range of the uid or of the namespace", kube.Printable(part, 100))
		}
		r := Span{Last: math.MaxUint64}
		var err error
		if r.First, err = parseHash(first); err == nil && end != "10000000000000000" {
			if r.Last, err = parseHash(end); err == nil && r.Last == 0 {
				err = errors.New("the end of the range is 0")
			}
			r.Last--
		}
		switch last := len(s.Spans) - 1; {
		case err != nil:
			return Selector{}, fmt.Errorf("%q: %w", kube.Printable(part, 100), err)
		case r.First > r.Last || last >= 0 && r.First <= s.Spans[last].Last:
			return Selector{}, fmt.Errorf("%q is empty or not above the range before it", kube.Printable(part, 100))
		}
		s.Key, s.Spans = key, append(s.Spans, r)
	}
	return s, nil
}

func parseHash(text string) (uint64, error) {
	if len(text) != 16 || text != strings.ToLower(text) {
		return 0, errors.New("a hash has 16 lowercase hexadecimal digits")
	}
	h, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return 0, errors.New("a hash has 16 lowercase hexadecimal digits")
	}
	return h, nil
}

// Of returns the hash of an object by a key of selectors.
func Of(obj metav1.Object, key string) (uint64, error) {
	switch {
	case kube.IsNil(obj):
		return 0, errors.New("the object is nil: pass an object that the API server returned")
	case key == ByNamespace && obj.GetNamespace() == "":
		return 0, fmt.Errorf("object %q has no metadata.namespace: a cluster-scoped resource needs the hash of the uid, without ByNamespace", kube.Printable(obj.GetName(), 253))
	case key == ByNamespace:
		return Hash(obj.GetNamespace()), nil
	case obj.GetUID() == "":
		return 0, fmt.Errorf("object %q has no metadata.uid: pass an object that the API server returned, or set ByNamespace for a resource without uids", kube.Printable(obj.GetName(), 253))
	}
	return Hash(string(obj.GetUID())), nil
}

// OfChild returns the hash of the controller owner of an object.
func OfChild(child metav1.Object, key string) (h uint64, ok bool, err error) {
	if key == ByNamespace || kube.IsNil(child) {
		h, err = Of(child, key)
		return h, err == nil, err
	}
	owner := metav1.GetControllerOfNoCopy(child)
	if owner == nil || owner.UID == "" {
		return 0, false, nil
	}
	return Hash(string(owner.UID)), true, nil
}

// Hash returns the 64-bit FNV-1a hash of text.
func Hash(text string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 0x100000001b3
	}
	return h
}
