package informer

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// AddRun adds informers that begin and end while the Set runs, such as those of an
// ondemand.Informers, whose Run it takes:
//
//	set.AddRun("watches", watches.Run)
//
// The Set calls run once, with a context, and stops it like an informer. The name stands for all
// of these informers: Relist makes each of them list again, and LastEvents has the time of the
// one that has received nothing for the longest time. They can end or not sync without an end
// of Set.Run. The rest is as for Add.
func (s *Set) AddRun(name string, run func(context.Context) error) {
	if run == nil {
		s.Add(name, nil)
		return
	}
	synced := make(chan struct{})
	close(synced)
	s.Add(name, &runner{name: name, run: run, synced: synced})
}

// runner is a function in the form of an informer without objects.
type runner struct {
	cache.SharedIndexInformer // nil: the Set calls only the methods below

	name   string
	run    func(context.Context) error
	synced chan struct{} // is closed
	failed atomic.Pointer[error]
}

func (r *runner) RunWithContext(ctx context.Context) {
	alive.From(ctx).Compose()
	if err := r.run(ctx); err != nil {
		err = fmt.Errorf("informer: %q: %w", r.name, err)
		r.failed.Store(&err)
	}
}

func (r *runner) HasSyncedChecker() cache.DoneChecker { return checker{r.synced} }
func (r *runner) IsStopped() bool                     { return false }
func (r *runner) GetStore() cache.Store               { return cache.NewStore(cache.MetaNamespaceKeyFunc) } // empty

func (r *runner) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return nil
}

func (r *runner) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}

// result returns the error of a function of AddRun.
func (m *member) result() error {
	if r, ok := m.informer.(*runner); ok {
		if err := r.failed.Load(); err != nil {
			return *err
		}
	}
	return nil
}

// Listed is an informer with its lister, in the form of informer-gen. [With] makes one.
type Listed[L any] struct {
	informer cache.SharedIndexInformer
	lister   L
}

// With returns an informer with its lister, for [Index] and for package operator. It is for
// informers that no factory makes, such as a scope.Informer:
//
//	operator.For(c, corev1.Resource("pods"), informer.With(pods, corelisters.NewPodLister))
func With[L any](informer cache.SharedIndexInformer, lister func(cache.Indexer) L) Listed[L] {
	if kube.IsNil(informer) {
		return Listed[L]{}
	}
	return Listed[L]{informer, lister(informer.GetIndexer())}
}

// Informer returns the informer.
func (l Listed[L]) Informer() cache.SharedIndexInformer { return l.informer }

// Lister returns the lister of the informer's cache.
func (l Listed[L]) Lister() L { return l.lister }
