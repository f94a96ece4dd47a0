// Package single watches the objects that are read, each by itself. That needs no right to list the others.
package single

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/ondemand"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	// wait bounds the first read of an object, which its list answers.
	wait = 5 * time.Second

	// sweep is the time between two looks for watches without a reader.
	sweep = time.Minute
)

var errWait = fmt.Errorf("its list was not answered within %v", wait)

// Watches has a watch for each object that is read.
type Watches struct {
	informers ondemand.Informers[types.NamespacedName]
	handler   cache.ResourceEventHandler
	needed    func(types.NamespacedName) bool

	mu   sync.Mutex
	open map[types.NamespacedName]*watched
}

type watched struct {
	*ondemand.Watch
	used time.Time // the last read
}

// New returns Watches whose informers make returns, one of an object. handler gets their events. needed reports
// whether the watch of an object that is not read now must stay.
func New(make func(types.NamespacedName) (cache.SharedIndexInformer, error), handler cache.ResourceEventHandler, needed func(types.NamespacedName) bool) *Watches {
	return &Watches{
		informers: ondemand.Informers[types.NamespacedName]{New: make, WatchErrorHandler: logError},
		handler:   handler, needed: needed,
		open: map[types.NamespacedName]*watched{},
	}
}

// logError logs what the server refuses. client-go's handler also sleeps, for all informers of the process.
func logError(ctx context.Context, _ *cache.Reflector, err error) {
	logger := klog.FromContext(ctx)
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		logger.V(4).Info("A watch of an object ended", "reason", err.Error())
		return
	}
	logger.Error(kube.PrintableError(err, 4<<10), "An object is not watched")
}

// Get returns the item of the cache, or nil if there is no such object. It opens the watch of the object, and
// waits for its list.
func (w *Watches) Get(ctx context.Context, name types.NamespacedName) (item any, err error) {
	watch, err := w.watch(name)
	if err != nil {
		return nil, err
	}
	if !watch.HasSynced() {
		limited, cancel := context.WithTimeoutCause(ctx, wait, errWait)
		defer cancel()
		if err := watch.WaitForSync(limited); err != nil {
			return nil, err
		}
	}
	item, _, err = watch.GetStore().GetByKey(cache.ObjectName(name).String())
	return item, err
}

func (w *Watches) watch(name types.NamespacedName) (*watched, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.open[name]
	if known == nil {
		opened, err := w.informers.Open(name)
		if err != nil {
			return nil, err
		}
		if _, err := opened.AddEventHandler(w.handler); err != nil {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return nil, errors.Join(err, opened.Close(ctx))
		}
		known = &watched{Watch: opened}
		w.open[name] = known
	}
	known.used = time.Now()
	return known, nil
}

// Run runs the watches until ctx is done, and ends those without a reader.
func (w *Watches) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g sync.WaitGroup
	defer g.Wait()
	g.Go(func() {
		tick := time.NewTicker(sweep)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.sweep(ctx)
			}
		}
	})
	defer cancel() // before the wait
	return w.informers.Run(ctx)
}

// sweep ends the watches without a reader.
func (w *Watches) sweep(ctx context.Context) {
	var unused []*watched
	w.mu.Lock()
	for name, watch := range w.open {
		if time.Since(watch.used) >= sweep && !w.needed(name) {
			delete(w.open, name)
			unused = append(unused, watch)
		}
	}
	w.mu.Unlock()
	for _, watch := range unused {
		if err := watch.Close(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "A watch of an object does not end")
		}
	}
}
