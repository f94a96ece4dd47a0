package shard

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Support says whether the API server selects the objects of a [Source], or sends all of them.
type Support struct {
	// Sent is true if the Source sends its selector. It does not for children by the uid of
	// their owner.
	Sent bool
	// Honored is the result of the last Probe. Known is false if there was none, or if the
	// resource has no object and its lists have no shardInfo, as the lists of custom resources.
	Known, Honored bool
	// Kept and Foreign count the objects of lists and the events of watches that the Source
	// has passed on and dropped. If Sent, Foreign grows only if an API server ignores the
	// selector, for example after a watch has connected to another one.
	Kept, Foreign int64
}

// Support returns the result of the last Probe and the counts. It sends no request.
func (s *Source) Support() Support {
	s.mu.Lock()
	defer s.mu.Unlock()
	support := s.support
	support.Sent, support.Kept, support.Foreign = s.text != "", s.kept.Load(), s.foreign.Load()
	return support
}

// Probe asks the API server whether it selects by shard, with one or two lists of at most one
// object. An API server without the feature gate ignores a selector silently, and only the
// lists of built-in resources have shardInfo, so Probe lists a range that contains no object.
// Several API servers behind one address can differ: Foreign of [Support] shows the one that
// the informer uses.
func (s *Source) Probe(ctx context.Context) (Support, error) {
	if s.text == "" {
		return s.Support(), nil
	}
	known, honored, err := s.probe(ctx)
	if err != nil {
		return s.Support(), fmt.Errorf("shard: probe: %w", err)
	}
	s.mu.Lock()
	s.support.Known, s.support.Honored = known, honored
	s.mu.Unlock()
	return s.Support(), nil
}

func (s *Source) probe(ctx context.Context) (known, honored bool, err error) {
	// One of 2^64 hashes: no object has it.
	options := metav1.ListOptions{Limit: 1, ShardSelector: selector{s.selector.key, []span{{0, 0}}}.String()}
	list, n, err := s.first(ctx, options)
	if err != nil {
		return false, false, err
	}
	if n > 0 {
		return true, false, nil
	}
	if l, ok := list.(metav1.ShardedListInterface); ok && l.GetShardInfo() != nil {
		return true, true, nil
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return false, false, err
	}
	// The same moment without the selector: is there an object that it has left out?
	options = metav1.ListOptions{Limit: 1, ResourceVersion: m.GetResourceVersion()}
	if options.ResourceVersion != "" {
		options.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	}
	if _, n, err = s.first(ctx, options); err != nil {
		return false, false, err
	}
	return n > 0, n > 0, nil
}

func (s *Source) first(ctx context.Context, options metav1.ListOptions) (list runtime.Object, n int, err error) {
	if list, err = s.lw.ListWithContext(ctx, options); err != nil {
		return nil, 0, err
	}
	return list, meta.LenList(list), nil
}
