package testlog_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/guard"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

type pointer struct{ text string }

func (p *pointer) Error() string { return p.text }

type value struct{ text string }

func (v *value) String() string { return v.text }

type marshaler struct{ logs any }

func (m marshaler) MarshalLog() any { return m.logs }

// TestProblem: each kind of line that a logger could print wrongly is a problem.
func TestProblem(t *testing.T) {
	for _, tc := range []struct {
		name    string
		isError bool
		err     error
		msg     string
		kv      []any
		want    string // a part of the problem; "" for none
	}{
		{name: "no values", msg: "Started"},
		{name: "values", msg: "Started", kv: []any{"key", types.NamespacedName{Name: "a"}, "object", klog.KRef("a", "b"), "n", 1, "err", errors.New("x"), "keys", []string{"a"}, "none", nil}},
		{name: "error", isError: true, err: errors.New("x"), msg: "Failed", kv: []any{"stack", "a\n\tb\n"}},
		{name: "no error", isError: true, msg: "Failed", want: "the error is nil"},
		{name: "nil pointer as an error", isError: true, err: (*pointer)(nil), msg: "Failed", want: "the error panics"},
		{name: "error of two lines", isError: true, err: errors.New("a\nb"), msg: "Failed", want: "the error has unprintable characters"},
		{name: "no message", want: "the message is empty"},
		{name: "message of two lines", msg: "a\nb", want: "the message is empty"},
		{name: "odd", msg: "A", kv: []any{"a"}, want: "no value"},
		{name: "key of another type", msg: "A", kv: []any{1, 2}, want: "is no word"},
		{name: "key of two words", msg: "A", kv: []any{"a b", 2}, want: "is no word"},
		{name: "key twice", msg: "A", kv: []any{"a", 1, "a", 1}, want: "twice"},
		{name: "key of the message", msg: "A", kv: []any{"msg", 1}, want: "twice"},
		{name: "key of the error", isError: true, err: errors.New("x"), msg: "A", kv: []any{"err", 1}, want: "twice"},
		{name: "nil pointer", msg: "A", kv: []any{"a", (*value)(nil)}, want: "the value of a panics"},
		{name: "nil pointer within", msg: "A", kv: []any{"a", marshaler{(*value)(nil)}}, want: "the value of a panics"},
		{name: "escape", msg: "A", kv: []any{"a", "\x1b[2K"}, want: "unprintable"},
		{name: "escape within", msg: "A", kv: []any{"a", []string{"\x1b[2K"}}, want: "unprintable"},
		{name: "invalid UTF-8", msg: "A", kv: []any{"a", &value{"\xff"}}, want: "unprintable"},
		{name: "long", msg: "A", kv: []any{"a", errors.New(strings.Repeat("x", 1<<20))}, want: "more than"},
		{name: "no error as a value", msg: "A", kv: []any{"err", error(nil)}, want: "the value of err is nil"},
		{name: "channel", msg: "A", kv: []any{"a", make(chan int)}, want: "no JSON"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := testlog.Problem(tc.isError, tc.err, tc.msg, tc.kv...)
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("problem = %q, want %q", got, tc.want)
			}
		})
	}
}

// TestStrict: a line of the library that has a key of the logger again ends the process, and
// such a line of a test does not. A child process logs it.
func TestStrict(t *testing.T) {
	const child = "STRICT_CHILD"
	if os.Getenv(child) != "" {
		testlog.Install(testlog.Text(os.Stderr, 0))
		logger := klog.FromContext(context.Background()).WithValues("omitted", 1)
		logger.Info("A line of a test", "omitted", 2)
		h := &guard.Handler{Logger: func() klog.Logger { return logger }, ResourceEventHandler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { panic("a panic that the handler recovers") },
		}}
		h.OnAdd(nil, false)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestStrict$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), `internal/guard/guard.go:`) || !strings.Contains(string(out), `the line "A handler panicked and missed the event": the key omitted is there twice`) || !strings.Contains(string(out), `"A line of a test"`) {
		t.Errorf("the child ended with %v, want a failure that names the line:\n%s", err, out)
	}
}
