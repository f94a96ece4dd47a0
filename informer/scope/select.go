package scope

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	maxParts    = 10_000 // bounds the namespaces of a Selection
	maxSelector = 1 << 16
	maxText     = 2048 // bounds the text of an error
	maxName     = 253  // bounds the text of a part
	maxLate     = 10   // bounds the parts in an error
)

// Selection selects the objects of a resource that an [Informer] shows. The zero value selects
// no object.
type Selection struct {
	// Namespaces are the namespaces, in any order, at most 10,000. "" means all namespaces,
	// and is the one of cluster-scoped resources. nil means none.
	Namespaces []string

	// LabelSelector and FieldSelector narrow the objects in every namespace. "" means all
	// objects.
	LabelSelector, FieldSelector string

	// ShardSelector narrows the objects to shards. The informers of the parts must send it and
	// filter by it, as those with a source of package shard do: an API server without the
	// feature gate ShardedListAndWatch ignores it. "" means all objects.
	ShardSelector string
}

// Part is a namespace with the selectors of a [Selection]: the objects of one informer.
type Part struct {
	Namespace                                   string // "" means all
	LabelSelector, FieldSelector, ShardSelector string
}

// Options sets LabelSelector and FieldSelector in options. It is a TweakListOptionsFunc of
// generated informers. It does not set ShardSelector: package shard's source does, except for
// children.
func (p Part) Options(options *metav1.ListOptions) {
	options.LabelSelector, options.FieldSelector = p.LabelSelector, p.FieldSelector
}

// String returns the namespace and the selectors.
func (p Part) String() string {
	text := "namespace " + p.Namespace
	if p.Namespace == "" {
		text = "all namespaces"
	}
	if p.LabelSelector != "" {
		text += ", labels " + p.LabelSelector
	}
	if p.FieldSelector != "" {
		text += ", fields " + p.FieldSelector
	}
	if p.ShardSelector != "" {
		text += ", shards " + p.ShardSelector
	}
	return text
}

// split returns the parts of a selection, with selectors as apimachinery writes them.
func (sel Selection) split() ([]Part, error) {
	if n := len(sel.Namespaces); n > maxParts {
		return nil, fmt.Errorf("scope: Selection.Namespaces has %d namespaces: the limit is %d: select all namespaces, with a label", n, maxParts)
	}
	if n := max(len(sel.LabelSelector), len(sel.FieldSelector), len(sel.ShardSelector)); n > maxSelector {
		return nil, fmt.Errorf("scope: a selector of the Selection has %d bytes: the limit is %d", n, maxSelector)
	}
	l, err := labels.Parse(sel.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("scope: Selection.LabelSelector %s is not valid: %w", quote(sel.LabelSelector), kube.PrintableError(err, maxText))
	}
	f, err := fields.ParseSelector(sel.FieldSelector)
	if err != nil {
		return nil, fmt.Errorf("scope: Selection.FieldSelector %s is not valid: %w", quote(sel.FieldSelector), kube.PrintableError(err, maxText))
	}
	namespaces := slices.Compact(slices.Sorted(slices.Values(sel.Namespaces)))
	if len(namespaces) > 0 && namespaces[0] == "" {
		namespaces = namespaces[:1]
	}
	var parts []Part
	for _, n := range namespaces {
		if problems := validation.IsDNS1123Label(n); n != "" && len(problems) > 0 {
			return nil, fmt.Errorf("scope: Selection.Namespaces: %s is not a namespace: %s", quote(n), problems[0])
		}
		parts = append(parts, Part{Namespace: n, LabelSelector: l.String(), FieldSelector: f.String(), ShardSelector: sel.ShardSelector})
	}
	return parts, nil
}

func quote(text string) string { return fmt.Sprintf("%q", kube.Printable(text, 253)) }

// name returns String for an error.
func (p Part) name() string { return kube.Printable(p.String(), maxName) }

// Select changes what the Informer, and each that With made of it, shows. It begins the informers
// of new parts, and returns nil when all parts are shown. A part is shown, at once in all of these
// Informers, as soon as its informers are synced. Parts that stay are not listed again. If only
// the selectors change and still select an object, the handlers get at most one update of it, and
// only if its version has changed. Calls run one after the other. A handler may call Select.
//
// A part whose lists fail does not stop the others. Select returns when the rest is shown, or
// ctx is done, and its error names the late parts and wraps their errors, for
// apierrors.IsForbidden and the like. client-go tries them again without limit, and each is shown
// when it succeeds, until a later Select omits it. Until then the parts that it replaces stay. If
// all namespaces and some replace each other, they do so together.
//
// An invalid Selection, and an error of the function of New, leave the selection as it was. An
// error that wraps ErrStopped means that an Informer has stopped.
func (i *Informer) Select(ctx context.Context, selection Selection) error {
	parts, err := selection.split()
	if err != nil {
		return err
	}
	i.selection.mu.Lock()
	followed := i.selection.follower != nil
	i.selection.mu.Unlock()
	if followed {
		return errors.New("scope: Select was called after Follow, which makes the selection: use one of them")
	}
	return i.selection.choose(ctx, parts)
}

// notOpened is an error of the function of New or With, or of its informer: the selection stays.
type notOpened struct{ error }

func (e *notOpened) Unwrap() error { return e.error }

func errNotOpened(key Part, err error) error {
	return &notOpened{fmt.Errorf("scope: select %s: %w: the selection stays as it was", key.name(), err)}
}

// choose makes the parts the selected ones.
func (s *selection) choose(ctx context.Context, parts []Part) error {
	select {
	case s.selecting <- struct{}{}:
	default:
		select {
		case s.selecting <- struct{}{}:
		case <-s.stopping:
			return errStopped("select")
		case <-ctx.Done():
			return fmt.Errorf("scope: select: %w: another Select is running", context.Cause(ctx))
		}
	}
	defer func() { <-s.selecting }()
	opened := map[Part]*region{}
	for changed := false; !changed; {
		missing, err := s.missing(parts)
		if err != nil {
			return err
		}
		for _, key := range missing {
			if opened[key] != nil {
				continue
			}
			if opened[key], err = s.newRegion(key); err != nil {
				return errNotOpened(key, err)
			}
		}
		if changed, err = s.changeTo(parts, opened); err != nil {
			return err
		}
	}
	for {
		s.mu.Lock()
		waits, changed := s.waitsLocked(), s.waitLocked()
		s.mu.Unlock()
		if !waits {
			return s.end(nil)
		}
		select {
		case <-changed:
		case <-s.stopping:
			return errStopped("select")
		case <-ctx.Done():
			return s.end(context.Cause(ctx))
		}
	}
}

// waitsLocked reports whether a pending region can be shown soon.
func (s *selection) waitsLocked() bool {
	if !s.canRunLocked() {
		return len(s.pending) > 0
	}
	for w := range s.running {
		if !w.failing() {
			return true
		}
	}
	return false
}

// end returns the result of a Select.
func (s *selection) end(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped("select")
	}
	err := s.lateLocked(cause)
	s.late = err != nil
	s.syncLocked(true)
	s.changeLocked()
	return err
}

// lateLocked returns an error that names the regions that are not shown.
func (s *selection) lateLocked(cause error) error {
	if len(s.pending) == 0 {
		return nil
	}
	late := slices.SortedFunc(maps.Values(s.pending), func(a, b *region) int { return strings.Compare(a.key.Namespace, b.key.Namespace) })
	var all error
	for _, r := range late[:min(len(late), maxLate)] {
		err := fmt.Errorf("%s: %w", r.key.name(), s.whyLocked(r))
		if all == nil {
			all = err
		} else {
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	if more := len(late) - maxLate; more > 0 {
		all = fmt.Errorf("%w; and %d more", all, more)
	}
	if cause != nil {
		all = fmt.Errorf("%w: %w", cause, all)
	}
	return fmt.Errorf("scope: select: %d of %d parts are not shown: %w", len(late), len(late)+len(s.shown), all)
}

// whyLocked returns the reason why a region is not shown.
func (s *selection) whyLocked(r *region) error {
	if err := r.failure(); err != nil {
		return kube.PrintableError(err, maxText)
	}
	switch {
	case !s.canRunLocked():
		return errNotRun
	case !slices.ContainsFunc(r.parts, func(p *part) bool { return !p.informer.HasSynced() }):
		return errors.New("its cache is older than the one that it replaces")
	}
	return errors.New("no list or watch has failed or is complete: the API server cannot be reached, or the list is long")
}

var errNotRun = errors.New("an Informer of the selection does not run: add it, and each that With returned, to an informer.Set")

func errStopped(step string) error {
	return fmt.Errorf("%w: %s: create a new Informer", ErrStopped, step)
}
