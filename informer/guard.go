package informer

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	maxStack   = 4096        // bytes of a stack in the log
	faultEvery = time.Second // the least time between two log lines of a Guard
)

// Guard returns a cache.TransformFunc that calls transform and contains its faults. Without it
// a panic of a transform ends the process. If a transform returns nil or an error, client-go
// leaves the object out of the cache, or lists again without end.
//
//	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(informer.Guard(strip, nil)))
//
// If transform panics, returns nil or an error, or changes the namespace, name, UID or
// resourceVersion, Guard restores these four fields. The cache then gets the object as
// transform left it, which can have a part of its changes. report is called with an error
// that names the kind and the key of the object, where debug.Stack contains the stack of a
// panic.
//
// report may be called concurrently, for each object, and twice for objects of a first list.
// nil logs the errors, at most one in a second, and the number of the others. A nil transform
// stays nil.
func Guard(transform cache.TransformFunc, report func(error)) cache.TransformFunc {
	if transform == nil {
		return nil
	}
	if report == nil {
		report = new(faultLog).report
	}
	return func(obj any) (out any, _ error) {
		var before identity
		failed := func(err error) {
			before.restore(obj)
			out = obj
			report(fault(obj, before, err))
		}
		defer func() {
			if reason := recover(); reason != nil {
				failed(fmt.Errorf("panic: %s", kube.Printable(fmt.Sprint(reason), maxText)))
			}
		}()
		before = identify(obj)
		result, err := transform(obj)
		switch {
		case err != nil:
			failed(kube.PrintableError(err, maxText))
		case kube.IsNil(result) && !kube.IsNil(obj):
			failed(errors.New("it returned nil: return the object"))
		case identify(result) != before:
			failed(errors.New("it changed the namespace, name, UID or resourceVersion: keep them"))
		default:
			out = result
		}
		return out, nil
	}
}

// fault returns the error of a transform of an object.
func fault(obj any, id identity, err error) error {
	kind := fmt.Sprintf("%T", obj)
	kind = kind[strings.LastIndexByte(kind, '.')+1:]
	if o, ok := obj.(runtime.Object); ok && !kube.IsNil(obj) {
		if k := o.GetObjectKind().GroupVersionKind().Kind; k != "" {
			kind = kube.Printable(k, maxName)
		}
	}
	key := kube.Printable(cache.NewObjectName(id.namespace, id.name).String(), 2*maxName+1)
	return fmt.Errorf("informer: transform %s %s: %w", kind, key, err)
}

// identity has the fields of an object that a cache needs.
type identity struct {
	namespace, name, version string
	uid                      types.UID
}

// identify returns the identity of an object, and the zero value for anything else.
func identify(obj any) identity {
	o, ok := access(obj)
	if !ok {
		return identity{}
	}
	return identity{o.GetNamespace(), o.GetName(), o.GetResourceVersion(), o.GetUID()}
}

// restore sets the identity of an object. It writes only if it differs.
func (i identity) restore(obj any) {
	if o, ok := access(obj); ok && identify(obj) != i {
		o.SetNamespace(i.namespace)
		o.SetName(i.name)
		o.SetResourceVersion(i.version)
		o.SetUID(i.uid)
	}
}

func access(obj any) (metav1.Object, bool) {
	if kube.IsNil(obj) {
		return nil, false
	}
	o, err := meta.Accessor(obj)
	return o, err == nil
}

// faultLog logs faults of a transform, and drops faults that come too fast: a transform can
// fail for each of many objects. It logs their number with the next fault, or when there is none.
type faultLog struct {
	mu      sync.Mutex // guards the fields below
	last    time.Time  // a line was logged
	omitted int        // faults since then
	err     error      // the last of them
	timer   *time.Timer
}

func (l *faultLog) report(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.last) >= faultEvery {
		stack := debug.Stack()
		klog.Background().Error(err, "A transform failed and the object was cached as it is",
			"omitted", l.omitted, "stack", string(stack[:min(len(stack), maxStack)]))
		l.last, l.omitted = now, 0
		if l.timer != nil {
			l.timer.Stop()
		}
		return
	}
	l.omitted, l.err = l.omitted+1, err
	if l.omitted == 1 {
		l.timer = time.AfterFunc(2*faultEvery, l.flush)
	}
}

// flush logs the number of faults at the end of a burst.
func (l *faultLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.omitted > 0 {
		klog.Background().Error(l.err, "More transforms failed and the objects were cached as they are", "omitted", l.omitted)
		l.last, l.omitted = time.Now(), 0
	}
}
