package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	kitinformer "github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/wire"
)

// Prepare makes [Add] and [Informer] work with a cache that has an informer for each of several namespaces, by
// DefaultNamespaces or Namespaces of ByObject, and makes lists of the cache consistent:
//
//	if err := bridge.Prepare(config, &options); err != nil {
//		return err
//	}
//	mgr, err := ctrl.NewManager(config, options)
//
// It wraps the transport of config, and sets options.NewCache and options.Cache.NewInformer to functions that call
// the previous ones. Call it once for each manager. An Informer of several namespaces shows objects while it
// runs. A namespace "" in the list, for all others, is an error of Informer.
func Prepare(config *rest.Config, options *manager.Options) error {
	switch {
	case config == nil:
		return errors.New("bridge: Prepare: config is nil: pass the rest.Config of ctrl.NewManager")
	case options == nil:
		return errors.New("bridge: Prepare: options is nil: pass the address of the options of ctrl.NewManager")
	case options.Cache.HTTPClient != nil:
		return errors.New("bridge: Prepare: options.Cache.HTTPClient is set, and its requests could not be seen: use config.Wrap in its place")
	}
	config.Wrap(kitinformer.ConsistentLists)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return probed{next} })
	newCache := options.NewCache
	if newCache == nil {
		newCache = crcache.New
	}
	options.NewCache = func(config *rest.Config, opts crcache.Options) (crcache.Cache, error) {
		p := &parts{of: map[form][]part{}}
		opts.NewInformer = p.newInformer(opts.NewInformer)
		c, err := newCache(config, opts)
		if err != nil {
			return nil, err
		}
		return prepared{c, p}, nil
	}
	return nil
}

// prepared is a cache whose parts are known.
type prepared struct {
	crcache.Cache
	parts *parts
}

// partsOf returns the parts of a cache, which can be wrapped, or nil.
func partsOf(c crcache.Cache) *parts {
	for {
		switch of := c.(type) {
		case prepared:
			return of.parts
		case interface{ Unwrap() crcache.Cache }:
			c = of.Unwrap()
		default:
			return nil
		}
	}
}

// parts has the informers of a cache.
type parts struct {
	mu sync.Mutex
	of map[form][]part
}

// A form is a kind in one of the caches of controller-runtime.
type form struct {
	reflect.Type
	schema.GroupVersionKind // of an object whose type does not determine it
}

func formOf(obj runtime.Object) form {
	f := form{Type: reflect.TypeOf(obj)}
	switch obj.(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		f.GroupVersionKind = obj.GetObjectKind().GroupVersionKind()
	}
	return f
}

// A part is the informer of a namespace, "" for one of all.
type part struct {
	namespace string
	informer  cache.SharedIndexInformer
	err       error // the namespace is not known
}

type newInformerFunc = func(cache.ListerWatcher, runtime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer

func (p *parts) newInformer(next newInformerFunc) newInformerFunc {
	if next == nil {
		next = cache.NewSharedIndexInformer
	}
	return func(lw cache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		made := part{informer: next(lw, obj, resync, indexers)}
		made.namespace, made.err = listed(lw)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.of[formOf(obj)] = append(p.of[formOf(obj)], made)
		return made.informer
	}
}

// informer returns an informer of all parts of the kind.
func (p *parts) informer(obj client.Object) (cache.SharedIndexInformer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]cache.SharedIndexInformer{}
	for _, part := range p.of[formOf(obj)] {
		switch {
		case part.err != nil:
			return nil, part.err
		case part.informer.IsStopped():
			continue
		}
		all[part.namespace] = part.informer
	}
	whole, cluster := all[""]
	switch {
	case cluster && len(all) == 1: // cluster-scoped
		return &informer{SharedIndexInformer: whole}, nil
	case cluster || len(all) == 0:
		return nil, fmt.Errorf("the manager's cache has informers of the namespaces %q: name each namespace, or leave the list empty", slices.Sorted(maps.Keys(all)))
	}
	return &union{
		Informer: scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			return &informer{SharedIndexInformer: all[p.Namespace]}, nil
		}),
		namespaces: slices.Sorted(maps.Keys(all)),
		parts:      slices.Collect(maps.Values(all)),
	}, nil
}

// union is the informer of several namespaces.
type union struct {
	*scope.Informer
	namespaces []string
	parts      []cache.SharedIndexInformer // of the namespaces
}

// inCache reports whether the manager's cache has the objects, which the union shows only while it runs.
func (u *union) inCache() bool {
	return !slices.ContainsFunc(u.parts, func(part cache.SharedIndexInformer) bool { return !part.HasSynced() })
}

// RunWithContext shows the namespaces and then gives the handlers their events, until ctx is done.
func (u *union) RunWithContext(ctx context.Context) {
	var g sync.WaitGroup
	g.Go(func() {
		if err := u.Select(ctx, scope.Selection{Namespaces: u.namespaces}); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The manager's cache shows not all of its namespaces")
		}
	})
	u.Informer.RunWithContext(ctx)
	g.Wait()
}

// probeKey is the key of a context whose request is not sent. The value is a func(*http.Request).
type probeKey struct{}

var errProbe = errors.New("bridge: a request that is not sent")

// listed returns the namespace that an informer lists.
func listed(lw cache.ListerWatcher) (namespace string, err error) {
	err = errors.New("the manager's rest.Config is not the one that Prepare got: pass the same to both")
	ctx := context.WithValue(context.Background(), probeKey{}, func(req *http.Request) {
		if target, verb, ok := wire.Parse(req); ok && verb == "list" {
			namespace, err = target.Namespace, nil
		}
	})
	_, _ = cache.ToListerWatcherWithContext(lw).ListWithContext(ctx, metav1.ListOptions{Limit: 1})
	return namespace, err
}

// probed is a transport that does not send the requests of listed.
type probed struct{ next http.RoundTripper }

// WrappedRoundTripper returns the inner transport, for client-go.
func (p probed) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip implements http.RoundTripper.
func (p probed) RoundTrip(req *http.Request) (*http.Response, error) {
	if note, ok := req.Context().Value(probeKey{}).(func(*http.Request)); ok {
		note(req)
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errProbe
	}
	return p.next.RoundTrip(req)
}
