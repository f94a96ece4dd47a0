package reflectorlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/controllerkit/controllerkit/informer/internal/reflectorlog"
)

var errBoom = errors.New("boom")

// TestListen: the error of a line in which a reflector names itself is recorded, and no other.
func TestListen(t *testing.T) {
	for _, tt := range []struct {
		name    string
		log     func(klog.Logger)
		settled bool
		want    string
	}{
		{name: "failed watch", log: func(l klog.Logger) { l.Info("Failed to watch", "reflector", "r", "err", errBoom) }, want: "boom false"},
		{name: "at the level of a retry", log: func(l klog.Logger) { l.V(2).Info("Backing off", "reflector", "r", "err", errBoom) }, want: "boom false"},
		{name: "at a higher level", log: func(l klog.Logger) { l.V(3).Info("Backing off", "reflector", "r", "err", errBoom) }},
		{name: "no bookmark", log: func(l klog.Logger) { l.Info("event bookmark expired", "err", errBoom) }, want: "boom true"},
		{name: "without a reflector", log: func(l klog.Logger) { l.Info("Retrying", "err", errBoom) }},
		{name: "without an error", log: func(l klog.Logger) { l.Info("Listing and watching", "reflector", "r") }},
		{name: "an error as text", log: func(l klog.Logger) { l.Info("Failed", "reflector", "r", "err", "boom") }},
		{name: "a key without a value", log: func(l klog.Logger) { l.Info("Failed", "reflector", "r", "err") }},
		{name: "a reflector of the values", log: func(l klog.Logger) { l.WithValues("reflector", "r").Info("Retrying", "err", errBoom) }},
		{name: "an error line", log: func(l klog.Logger) { l.Error(errBoom, "Failed", "reflector", "r", "err", errBoom) }},
		{name: "settled", settled: true, log: func(l klog.Logger) { l.Info("Failed to watch", "reflector", "r", "err", errBoom) }},
	} {
		for logger, l := range map[string]klog.Logger{
			"off":    {},
			"silent": textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(new(bytes.Buffer)))),
			"higher": textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(new(bytes.Buffer)))).V(3),
		} {
			var heard []string
			tt.log(reflectorlog.Listen(l, func() bool { return tt.settled }, func(err error, bookmark bool) {
				heard = append(heard, fmt.Sprint(err, " ", bookmark))
			}))
			if got := strings.Join(heard, ", "); got != tt.want {
				t.Errorf("%s, logger %s: heard %q, want %q", tt.name, logger, got, tt.want)
			}
		}
	}
}

// TestLines: the lines are those of the logger alone, at each of its verbosities, with its
// names and values and the caller's file and line.
func TestLines(t *testing.T) {
	header := regexp.MustCompile(`(?m)^([IE]).*? +\d+ (\S+)\] `)
	for verbosity := range 4 {
		for _, settled := range []bool{false, true} {
			log := func(listen func(klog.Logger) klog.Logger) string {
				var out bytes.Buffer
				l := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out), textlogger.Verbosity(verbosity)))
				l = listen(l.WithName("app").WithValues("controller", "widgets")).WithName("reflector").WithValues("type", "pods")
				l.Info("Failed to watch", "reflector", "r", "err", errBoom)
				l.V(1).Info("One")
				l.V(2).Info("Backing off", "reflector", "r", "err", errBoom)
				l.V(3).Info("Three")
				l.Error(errBoom, "Failed")
				return header.ReplaceAllString(out.String(), "$1 $2 ")
			}
			want := log(func(l klog.Logger) klog.Logger { return l })
			got := log(func(l klog.Logger) klog.Logger {
				return reflectorlog.Listen(l, func() bool { return settled }, func(error, bool) {})
			})
			if got != want || strings.Count(want, "I reflectorlog_test.go:") != 1+verbosity || !strings.Contains(want, "E reflectorlog_test.go:") {
				t.Errorf("verbosity %d, settled %t: lines\n%swant\n%s", verbosity, settled, got, want)
			}
		}
	}
}

// TestHelper: the methods mark themselves as helpers, for the loggers of tests.
func TestHelper(t *testing.T) {
	sink := &helping{LogSink: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(new(bytes.Buffer)))).GetSink()}
	l := reflectorlog.Listen(klog.New(sink), func() bool { return false }, func(error, bool) {})
	l.Info("Info")
	info := sink.marked
	l.Error(errBoom, "Error")
	if info != 2 || sink.marked-info != 2 { // that of the logger, and that of the package
		t.Errorf("Info has marked %d functions, and Error %d, want 2 of each", info, sink.marked-info)
	}
}

// helping is a sink that counts the functions that mark themselves.
type helping struct {
	klog.LogSink
	marked int
}

func (h *helping) GetCallStackHelper() func() { return func() { h.marked++ } }
