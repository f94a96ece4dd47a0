package reconcile_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/klog/v2"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestLogIsOneLine: the text of an error, whoever wrote it, is one line of log of bounded
// length, without control characters, and the error keeps its identity.
//
// Proves R1.
func TestLogIsOneLine(t *testing.T) {
	cause := errors.New("cause")
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"joined", errors.Join(cause, errPlain), `err="cause\\nplain"`},
		{"a terminal's escape", fmt.Errorf("\x1b[2K\rok %w", cause), `err="\\x1b[2K\\rok cause"`},
		{"a line separator and a direction", fmt.Errorf("a\u2028b\u202e %w", cause), `err="a\\u2028b\\u202e cause"`},
		{"plain", fmt.Errorf("spec: größe %w", cause), `err="spec: größe cause"`},
		{"long", fmt.Errorf("%w %s", cause, strings.Repeat("x", 1<<20)), "xxx..."},
		{"one byte too long", errors.New(strings.Repeat("x", 16<<10+1)), `xxx..."`},
		{"just short enough", errors.New(strings.Repeat("x", 16<<10)), `xxx" `},
		{"quiet", fmt.Errorf("a\nb %w: %w", errConflict, cause), `err="a\\nb`},
		{"a service's details", &apierrors.StatusError{ErrStatus: metav1.Status{
			Reason: metav1.StatusReasonForbidden, Code: 403, Message: "no\nyes", Details: &metav1.StatusDetails{Name: "a\x1bb"}}}, `deniedName="a\\x1bb"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				logger := testlog.Text(&out, 4)
				r := start(t, klog.NewContext(t.Context(), logger), &controller{Name: "x", Queue: newTestQueue("a"), Reconcile: returning(reconcile.Result{}, tt.err)})
				r.stop()
				for line := range strings.Lines(out.String()) {
					if strings.Contains(line, "class=") != strings.Contains(line, tt.want) {
						t.Errorf("log line %.300q, want one with %s", line, tt.want)
					}
					if len(line) > 20<<10 || strings.ContainsAny(line, "\x1b\r\u2028") {
						t.Errorf("log line of %d bytes: %.300q", len(line), line)
					}
				}
				if got := strings.Count(out.String(), "class="); got != 1 {
					t.Errorf("%d lines about the call", got)
				}
			})
		})
	}
}

// TestHostileKeyIsLogged: each line about a key that is not printable, such as a name that
// an object refers to, escapes it. testlog ends the process at a line that does not.
func TestHostileKeyIsLogged(t *testing.T) {
	const key, want = "ns/a\x1b[2K\nb", `ns/a\x1b[2K\nb`
	synctest.Test(t, func(t *testing.T) {
		logs := testlog.New()
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: newTestQueue(key), Reconcile: returning(reconcile.Result{}, errPlain)})
		synctest.Wait()
		r.stop()
		lines := logs.Having("key")
		if len(lines) == 0 {
			t.Error("no line has the key")
		}
		for _, l := range lines {
			if l.Values["key"] != want {
				t.Errorf("%s: key = %q, want %q", l.Message, l.Values["key"], want)
			}
		}
	})
}
