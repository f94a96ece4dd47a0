package scope

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	maxParts    = 10_000 // bounds the namespaces of a Selection
	maxSelector = 1 << 16
	maxText     = 2048 // bounds the text of an error
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

// overlaps reports whether both can select the same object.
func (p Part) overlaps(q Part) bool {
	return p.Namespace == "" || q.Namespace == "" || p.Namespace == q.Namespace
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

// Select changes what the Informer shows. It opens the informers of new parts and waits
// until they are synced. Then it shows the new selection in one step, queues the events of
// the difference for the handlers, and closes the informers of the parts that have left.
// Parts that stay are not listed again. If only the selectors change and still select an
// object, the handlers get at most one update of it, and only if its version has changed.
// Calls run one after the other. Select does not need RunWithContext. A handler may call
// it.
//
// If ctx is done before the new parts are synced, or an informer cannot be opened, the
// selection stays as it was. The error names the part and wraps the error of the Watch, for
// apierrors.IsForbidden and the like. Give ctx a deadline, because client-go retries failed
// lists without limit. An error that wraps ErrStopped means that the Informer has stopped.
// An invalid Selection is an error whose text names the field.
func (s *Informer) Select(ctx context.Context, selection Selection) error {
	parts, err := selection.split()
	if err != nil {
		return err
	}
	if s.open == nil {
		return errors.New("scope: New got a nil function: pass the Open method of an ondemand.Informers")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	select {
	case s.selecting <- struct{}{}:
	case <-s.stopping:
		return fmt.Errorf("%w: select: create a new Informer", ErrStopped)
	case <-ctx.Done():
		return fmt.Errorf("scope: select: %w: another Select is running", context.Cause(ctx))
	}
	defer func() { <-s.selecting }()
	ended := make(chan struct{})
	defer func() { <-ended }()
	defer cancel(nil)
	go func() {
		defer close(ended)
		select {
		case <-s.stopping:
			cancel(ErrStopped)
		case <-ctx.Done():
		}
	}()

	c := s.plan(parts)
	defer s.abort(c) // a no-op after commit
	if err := s.stage(ctx, c); err != nil {
		return err
	}
	return s.commit(c)
}

// change is the work of a Select. Its parts are in neither list if they stay.
type change struct {
	added   []*part
	removed []*part
	done    bool
}

// plan compares the parts with the selected ones. It holds the events of removed parts that
// added parts overlap: the lists of the added parts begin later than the last event that the
// handlers get of them, so an object cannot come back in an older state.
func (s *Informer) plan(parts []Part) *change {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &change{}
	stay := map[Part]bool{}
	for _, key := range parts {
		if s.parts[key] != nil {
			stay[key] = true
			continue
		}
		c.added = append(c.added, &part{scope: s, key: key, objects: map[cache.ObjectName]any{}})
	}
	all := slices.ContainsFunc(c.added, func(p *part) bool { return p.key.Namespace == "" })
	namespaces := map[string]bool{}
	for _, p := range c.added {
		namespaces[p.key.Namespace] = true
	}
	for key, p := range s.parts {
		if stay[key] {
			continue
		}
		c.removed = append(c.removed, p)
		if p.holding = all || namespaces[key.Namespace] || key.Namespace == "" && len(c.added) > 0; p.holding {
			p.heldAt = p.version() // not before holding is set
		}
	}
	return c
}

// stage opens the added parts and waits until they are synced and no older than the removed
// parts that they overlap.
func (s *Informer) stage(ctx context.Context, c *change) error {
	for _, p := range c.added {
		w, err := s.open(p.key)
		if err == nil && kube.IsNil(w) {
			err = errors.New("open returned a nil Watch: return an open one")
		}
		if err != nil {
			return p.failed(err)
		}
		s.mu.Lock()
		p.watch = w
		s.staged = append(s.staged, p)
		err = p.addIndexers(s.indexers)
		s.mu.Unlock()
		if err != nil {
			return p.failed(err)
		}
	}
	for _, p := range c.added {
		if err := p.watch.WaitForSync(ctx); err != nil {
			return p.failed(err)
		}
		for _, r := range c.removed {
			if r.holding && p.key.overlaps(r.key) {
				if err := p.reach(ctx, r.heldAt); err != nil {
					return p.failed(err)
				}
			}
		}
		if _, err := p.watch.AddEventHandler(p); err != nil {
			return p.failed(err)
		}
	}
	for _, p := range c.added {
		if err := p.watch.WaitForSync(ctx); err != nil { // p has the objects
			return p.failed(err)
		}
	}
	return nil
}

// commit shows the new selection and sends the events of the difference.
func (s *Informer) commit(c *change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("%w: select: create a new Informer", ErrStopped)
	}
	c.done = true
	was, is := byNamespace(c.removed), byNamespace(c.added)
	for _, p := range c.removed {
		delete(s.parts, p.key)
	}
	for _, p := range c.added {
		s.parts[p.key] = p
	}
	s.view.Store(newView(s.parts, s.view.Load()))
	s.staged = nil

	var events []event
	for _, p := range c.removed {
		for name, old := range p.objects {
			if _, stays := is.object(name); !stays {
				events = append(events, event{kind: deleted, old: old})
			}
		}
	}
	for _, p := range c.added {
		p.visible = true
		for name, obj := range p.objects {
			old, stays := was.object(name)
			switch {
			case !stays:
				events = append(events, event{kind: added, new: obj, initial: true})
			case !same(old, obj):
				events = append(events, event{kind: updated, old: old, new: obj})
			}
		}
	}
	for _, p := range c.removed {
		p.closeLocked()
	}
	select {
	case <-s.synced:
	default:
		close(s.synced)
		events = append(events, event{kind: synced})
	}
	s.sendLocked(events...)
	return nil
}

// abort undoes a change that has failed.
func (s *Informer) abort(c *change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.done {
		return
	}
	s.staged = nil
	for _, p := range c.added {
		p.closeLocked()
	}
	for _, p := range c.removed {
		held := p.held
		p.holding, p.held = false, nil
		for _, e := range held {
			p.applyLocked(e)
		}
	}
}

// sendLocked sends events to the handlers.
func (s *Informer) sendLocked(events ...event) {
	for l := range s.listeners {
		l.add(events)
	}
}

// reach waits until the part's cache has a version. A fresh list has it. A shared cache, and a
// list from an old cache of the API server, can get it with the next bookmark only. Bookmarks
// are no events, so reach polls.
func (p *part) reach(ctx context.Context, version string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		order, err := resourceversion.CompareResourceVersion(p.version(), version)
		if err != nil || order >= 0 {
			return nil // only fakes have versions that cannot be compared
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: its cache is older than the one that it replaces", context.Cause(ctx))
		}
	}
}

func (p *part) failed(err error) error {
	if errors.Is(err, ErrStopped) {
		return fmt.Errorf("%w: select %s: create a new Informer", ErrStopped, kube.Printable(p.key.String(), 253))
	}
	return fmt.Errorf("scope: select %s: %w: the selection stays as it was", kube.Printable(p.key.String(), 253), err)
}
