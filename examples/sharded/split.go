package main

import (
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/shard"
)

// A split gives the handler of each shard the objects of the shard. If each shard added its handler to the informer,
// a start with S shards of N objects would call the handlers S × N times, and each event S times.
type split struct {
	cache.SharedIndexInformer
	ranges       shard.Ranges
	registration cache.ResourceEventHandlerRegistration
	handlers     sync.Map // cache.ResourceEventHandler by the index of the shard
}

// byShard is the index of the objects of each shard.
const byShard = "shard"

func newSplit(informer cache.SharedIndexInformer, ranges shard.Ranges) (s *split, err error) {
	s = &split{SharedIndexInformer: informer, ranges: ranges}
	if err = informer.AddIndexers(cache.Indexers{byShard: func(obj any) ([]string, error) { return []string{strconv.Itoa(s.of(obj))}, nil }}); err == nil {
		s.registration, err = informer.AddEventHandler(s)
	}
	return s, err
}

// of returns the index of an object's shard, or -1.
func (s *split) of(obj any) int {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if o, ok := obj.(metav1.Object); ok {
		if i, err := s.ranges.Of(o); err == nil {
			return i
		}
	}
	return -1
}

// handler returns the handler of a shard. It does nothing if the shard has none.
func (s *split) handler(index int) cache.ResourceEventHandler {
	if h, ok := s.handlers.Load(index); ok {
		return h.(cache.ResourceEventHandler)
	}
	return cache.ResourceEventHandlerFuncs{}
}

func (s *split) OnAdd(obj any, initial bool) { s.handler(s.of(obj)).OnAdd(obj, initial) }
func (s *split) OnDelete(obj any)            { s.handler(s.of(obj)).OnDelete(obj) }

func (s *split) OnUpdate(old, obj any) {
	before, now := s.of(old), s.of(obj)
	if before == now {
		s.handler(now).OnUpdate(old, obj)
		return
	}
	s.handler(before).OnDelete(old) // another object with the name has another uid
	s.handler(now).OnAdd(obj, false)
}

// A part is what a shard sees of the informer, for Handle.
type part struct {
	*split
	index int
}

func (p part) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	p.handlers.Store(p.index, h)
	return p.registration, nil
}

func (p part) removeEventHandler() { p.handlers.Delete(p.index) }

func (p part) GetStore() cache.Store { return store{p.GetIndexer(), strconv.Itoa(p.index)} }

// A store lists the keys of a shard.
type store struct {
	cache.Indexer
	shard string
}

func (s store) ListKeys() []string {
	keys, _ := s.IndexKeys(byShard, s.shard) // the only error is of an index that is absent
	return keys
}
