package testlog

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/controllerkit/controllerkit/internal/kube"
)

var installed bool

// Install makes l klog's global logger, which tests without a logger of their own use, unless
// an earlier call did. TestMain calls it with a logger of this package; testserver.Run does,
// with one that writes to stderr.
func Install(l klog.Logger) {
	if !installed {
		installed = true
		klog.SetLoggerWithOptions(l, klog.ContextualLogger(true))
	}
}

// Text returns a [Strict] logger that writes lines up to the level as klog does.
func Text(w io.Writer, level int) klog.Logger {
	return Strict(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(level))))
}

// Silent returns a [Strict] logger that writes nothing.
func Silent() klog.Logger { return Strict(klog.New(discard{})) }

// Strict returns a logger that checks each line of this library, up to V(4), and passes all
// lines on to l. Some loggers end the process at a line that others print: the check ends it
// at every line that any logger could print wrongly. See problem.
func Strict(l klog.Logger) klog.Logger {
	return klog.New(strict{next: l.WithCallDepth(1).GetSink()})
}

// strict is the sink of Strict.
type strict struct {
	next klog.LogSink
	with []any
}

func (s strict) Init(klog.RuntimeInfo) {} // the owner of next has initialized it

func (s strict) Enabled(level int) bool { return level <= maxLevel || s.next.Enabled(level) }

func (s strict) Info(level int, msg string, kv ...any) {
	check(level, nil, msg, s.with, kv)
	if s.next.Enabled(level) {
		s.next.Info(level, msg, kv...)
	}
}

func (s strict) Error(err error, msg string, kv ...any) {
	check(errorLevel, err, msg, s.with, kv)
	s.next.Error(err, msg, kv...)
}

func (s strict) WithValues(kv ...any) klog.LogSink {
	s.next, s.with = s.next.WithValues(kv...), append(slices.Clone(s.with), kv...)
	return s
}

func (s strict) WithName(name string) klog.LogSink {
	s.next = s.next.WithName(name)
	return s
}

func (s strict) WithCallDepth(depth int) klog.LogSink {
	if next, ok := s.next.(logr.CallDepthLogSink); ok {
		s.next = next.WithCallDepth(depth)
	}
	return s
}

const (
	errorLevel = -1
	maxLevel   = 4        // of this library
	maxValue   = 80 << 10 // bytes, of a text of 16 KiB whose bytes are escaped
)

// check ends the process if a line of this library has a [problem]. A panic would end only
// the call if the library recovers it.
func check(level int, err error, msg string, with, kv []any) {
	site, ours := caller()
	if !ours {
		return
	}
	if text := problem(level, err, msg, append(slices.Clone(with), kv...)); text != "" {
		fmt.Fprintf(os.Stderr, "testlog: %s: the line %q: %s\n\n%s", site, msg, text, debug.Stack())
		os.Exit(1)
	}
}

// caller returns where the line that is being logged was logged, and whether a file of this
// repository that is no test logged it.
func caller() (site string, ours bool) {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for logger := false; ; {
		f, more := frames.Next()
		switch {
		case strings.HasPrefix(f.Function, "github.com/go-logr/logr.Logger."):
			logger = true
		case logger:
			ours = strings.HasPrefix(f.Function, "github.com/controllerkit/controllerkit/") && !strings.HasSuffix(f.File, "_test.go")
			return fmt.Sprintf("%s:%d", f.File, f.Line), ours
		}
		if !more {
			return "", false
		}
	}
}

var goodKey = regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)

// reserved are the keys that loggers give to the parts of a line.
var reserved = []string{"msg", "message", "level", "v", "ts", "time", "caller", "source", "logger"}

// problem returns what is wrong with a line, or "": no error in a line about one, a key that
// is missing, no word or not the only one, a value whose methods panic, or a text that is
// longer than maxValue or has unprintable characters.
func problem(level int, err error, msg string, kv []any) string {
	seen := map[string]bool{}
	if level == errorLevel {
		seen["err"], seen["error"] = true, true // loggers add one of them
		if err == nil {
			return "the error is nil"
		}
		if text := problemOf(err); text != "" {
			return "the error " + text
		}
	}
	if msg == "" || msg != kube.Printable(msg, 200) {
		return "the message is empty, too long or has unprintable characters"
	}
	if len(kv)%2 != 0 {
		return "the last key has no value"
	}
	for i := 0; i < len(kv); i += 2 {
		key, ok := kv[i].(string)
		switch {
		case !ok || !goodKey.MatchString(key):
			return fmt.Sprintf("the key %v is no word in lowerCamel", kv[i])
		case seen[key] || slices.Contains(reserved, key):
			return fmt.Sprintf("the key %s is there twice", key)
		case kv[i+1] == nil && (key == "err" || key == "cause"):
			return fmt.Sprintf("the value of %s is nil: leave it out, because a reader takes the line for a failure", key)
		}
		seen[key] = true
		if text := problemOf(kv[i+1]); text != "" && (key != "stack" || text != unprintable) {
			return fmt.Sprintf("the value of %s %s", key, text)
		}
	}
	return ""
}

const unprintable = "has unprintable characters" // a stack has lines

// problemOf returns what is wrong with a value. It calls the methods that loggers call.
func problemOf(value any) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("panics: %v", p)
		}
	}()
	var all []string
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		all = []string{v}
	case []string:
		all = v
	default:
		if m, ok := v.(logr.Marshaler); ok {
			if text := problemOf(m.MarshalLog()); text != "" {
				return text
			}
		}
		if e, ok := v.(error); ok {
			all = append(all, e.Error())
		} else if _, err := json.Marshal(v); err != nil {
			return "has no JSON: " + err.Error()
		}
		if s, ok := v.(fmt.Stringer); ok {
			all = append(all, s.String())
		}
		if all == nil {
			all = []string{fmt.Sprintf("%+v", v)}
		}
	}
	size := 0
	for _, s := range all {
		if size += len(s); size > maxValue {
			return fmt.Sprintf("has more than %d bytes", maxValue)
		}
		if s != kube.Printable(s, len(s)) {
			return unprintable
		}
	}
	return ""
}
