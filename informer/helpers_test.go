package informer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) {
	// The second of apimachinery's error handlers spaces errors by 1 ms since the
	// last one, which it keeps for the process. Each synctest bubble begins in
	// the year 2000, so an error of an earlier bubble would be one of the future
	// and the handler would sleep until then.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	testserver.Main(m)
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// listWatch makes an informer of ConfigMaps from two functions. It uses the
// watch-list protocol, as real clients do. If list is nil, a list fails: client-go can
// begin one while it stops.
func listWatch(list func() error, watchFn func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			if list == nil {
				return nil, errors.New("the server has no list")
			}
			if err := list(); err != nil {
				return nil, err
			}
			return &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
		},
		WatchFuncWithContext: watchFn,
	}, &corev1.ConfigMap{}, 0, cache.Indexers{})
}

// healthy lists nothing and then watches for ever.
func healthy() cache.SharedIndexInformer {
	return listWatch(func() error { return nil }, func(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
		if opts.SendInitialEvents != nil {
			return nil, errors.New("the server has no watch-list")
		}
		return watch.NewFake(), nil
	})
}

// failing answers both verbs with err.
func failing(err error) cache.SharedIndexInformer {
	return listWatch(func() error { return err }, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, err })
}

func forbidden(verb string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New(`User "joe" cannot `+verb+` resource "configmaps"`))
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

// quiet drops client-go's own lines, which failures here make many of.
func quiet(t *testing.T) context.Context {
	return klog.NewContext(t.Context(), testlog.Silent())
}

// incomparable is an informer whose checkers panic when they are compared.
type incomparable struct{ cache.SharedIndexInformer }

func (i incomparable) HasSyncedChecker() cache.DoneChecker {
	return struct {
		cache.DoneChecker
		_ []int
	}{DoneChecker: i.SharedIndexInformer.HasSyncedChecker()}
}

// stubborn is an informer that takes its time to stop, as client-go's does in
// one of its pauses.
type stubborn struct {
	cache.SharedIndexInformer
	extra time.Duration
}

func (s stubborn) RunWithContext(ctx context.Context) {
	s.SharedIndexInformer.RunWithContext(ctx)
	time.Sleep(s.extra)
}

type brief struct{ cache.SharedIndexInformer }

func (brief) RunWithContext(context.Context) {}

// lockedBuffer takes the lines of several goroutines.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// testLog is where a test's logger writes. It notes file and line as testing does.
type testLog struct {
	testing.TB
	mu      sync.Mutex // guards the fields below
	helpers map[string]bool
	lines   []string
}

func (l *testLog) Helper() {
	pc, _, _, _ := goruntime.Caller(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.helpers[goruntime.FuncForPC(pc).Name()] = true
}

func (l *testLog) Log(...any) {
	pcs := make([]uintptr, 50)
	frames := goruntime.CallersFrames(pcs[:goruntime.Callers(2, pcs)])
	l.mu.Lock()
	defer l.mu.Unlock()
	for frame, more := frames.Next(); more; frame, more = frames.Next() {
		if !l.helpers[frame.Function] {
			l.lines = append(l.lines, fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line))
			return
		}
	}
}
