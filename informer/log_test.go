package informer_test

import (
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/klog/v2/textlogger"

	"github.com/controllerkit/controllerkit/informer"
)

// TestLogIsUnchanged: the Set listens to client-go's log, and whoever reads the
// log must not notice.
func TestLogIsUnchanged(t *testing.T) {
	lookFor := []string{"bookmark expired", "backing off", "Failed to watch"}
	volatile := regexp.MustCompile(`reflector="[^"]*"|err="[^"]*"`)
	for _, verbosity := range []int{0, 4} {
		run := func(t *testing.T, inf cache.SharedIndexInformer, start func(context.Context)) []string {
			var out lockedBuffer
			logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out), textlogger.Verbosity(verbosity)))
			logger = logger.WithName("app").WithValues("controller", "widgets")
			ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), 15*time.Second)
			defer cancel()
			start(ctx)
			var lines []string
			for line := range strings.Lines(out.String()) {
				// The informer's own name and the time differ from run to run.
				if at, text, ok := strings.Cut(line, "] "); ok && slices.ContainsFunc(lookFor, func(s string) bool { return strings.Contains(text, s) }) {
					lines = append(lines, at[strings.LastIndexByte(at, ' ')+1:]+" "+volatile.ReplaceAllString(text, ""))
				}
			}
			return lines
		}
		for name, inf := range map[string]func() cache.SharedIndexInformer{
			"bookmark": func() cache.SharedIndexInformer {
				return listWatch(nil, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil })
			},
			"refused":   func() cache.SharedIndexInformer { return failing(errRefused) },
			"forbidden": func() cache.SharedIndexInformer { return failing(forbidden("list")) },
		} {
			synctest.Test(t, func(t *testing.T) {
				plain := inf()
				want := run(t, plain, plain.RunWithContext)
				set := informer.Set{StopTimeout: time.Hour}
				mine := inf()
				set.Add("x", mine)
				got := run(t, mine, func(ctx context.Context) { _ = set.Run(ctx) })
				if (len(want) == 0) != (name == "refused" && verbosity == 0) || (len(want) == 0) != (len(got) == 0) {
					t.Fatalf("verbosity %d, %s: got %q, want %q", verbosity, name, got, want)
				}
				if len(want) > 0 && got[0] != want[0] {
					t.Errorf("verbosity %d, %s: first line\n%q, want\n%q", verbosity, name, got[0], want[0])
				}
			})
		}
	}
}

// Loggers of tests find the line by testing.TB.Helper.
func TestLinesInTestLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := func(start func(context.Context)) []string {
			log := &testLog{TB: t, helpers: map[string]bool{}}
			logger := ktesting.NewLogger(log, ktesting.NewConfig(ktesting.Verbosity(4)))
			ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), 5*time.Second)
			defer cancel()
			start(ctx)
			slices.Sort(log.lines)
			return slices.Compact(log.lines)
		}
		want := run(failing(forbidden("list")).RunWithContext)
		var set informer.Set
		set.Add("x", failing(forbidden("list")))
		got := run(func(ctx context.Context) { _ = set.Run(ctx) })
		if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
			t.Errorf("lines of code in the log (-without +with the Set):\n%s", diff)
		}
	})
}

// Client-go also tells debuggers what is no failure.
//
// Proves I2.
func TestDiagnosisWithAVerboseLog(t *testing.T) {
	for _, verbosity := range []int{0, 4, 10} {
		synctest.Test(t, func(t *testing.T) {
			set := informer.Set{StopTimeout: time.Hour}
			set.Add("x", cache.NewSharedIndexInformer(&cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
					<-ctx.Done() // a long list
					return nil, ctx.Err()
				},
				WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					return nil, errors.New("the server has no watch-list")
				},
			}, &corev1.ConfigMap{}, 0, cache.Indexers{}))
			logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.Discard), textlogger.Verbosity(verbosity)))
			err := set.Run(klog.NewContext(t.Context(), logger))
			if err == nil || strings.Contains(err.Error(), "watch-list") {
				t.Errorf("verbosity %d: Run() = %v, want nothing about the watch-list", verbosity, err)
			}
		})
	}
}

// A logger of a higher verbosity is no reason to be deaf.
func TestLoggerWithVerbosity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := informer.Set{StopTimeout: time.Hour}
		set.Add("x", failing(errRefused))
		ctx := quiet(t)
		err := set.Run(klog.NewContext(ctx, klog.FromContext(ctx).V(3)))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Run() = %v, want the reason", err)
		}
	})
}

func TestLoggerThatIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := informer.Set{StopTimeout: time.Hour}
		set.Add("x", failing(errRefused))
		err := set.Run(klog.NewContext(t.Context(), klog.Logger{}))
		if err == nil || !strings.Contains(err.Error(), "the server could not be reached") {
			t.Errorf("Run() = %v, want the reason also without a log", err)
		}
	})
}
