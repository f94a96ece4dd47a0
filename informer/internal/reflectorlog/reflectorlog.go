// Package reflectorlog finds failures of client-go's reflectors in their log lines.
package reflectorlog

import (
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// Listen returns a logger that also records failures. Some failures of a reflector do not
// reach its watch error handler: it repeats the request and only logs the reason, so the
// error is taken from the log line.
//
// heard is called with each failure, where bookmark reports that the end of the initial events
// is missing. Once settled reports true, no failure is recorded.
func Listen(logger klog.Logger, settled func() bool, heard func(err error, bookmark bool)) klog.Logger {
	e := &ear{settled: settled, heard: heard, limit: logger.GetV() + retryLevel, sink: logger.GetSink()}
	return logger.WithSink(e.WithCallDepth(1)) // 1 for the method of ear
}

const (
	// retryLevel is the verbosity at which the reflector logs why it repeats its first
	// request.
	retryLevel = 2
	// BookmarkWarning is the time after which the reflector reports a missing end of the
	// initial events.
	BookmarkWarning = 10 * time.Second
)

// ear is a sink that records failures and passes all lines to sink, which is nil if logging
// is off.
type ear struct {
	settled func() bool
	heard   func(err error, bookmark bool)
	limit   int // the highest level that it records
	sink    klog.LogSink
}

func (e *ear) Init(klog.RuntimeInfo) {} // the owner of sink has initialized it

func (e *ear) Enabled(level int) bool {
	return level <= e.limit && !e.settled() || e.sink != nil && e.sink.Enabled(level)
}

func (e *ear) Info(level int, msg string, keysAndValues ...any) {
	e.GetCallStackHelper()()
	if !e.settled() {
		e.listen(msg, keysAndValues)
	}
	if e.sink != nil && e.sink.Enabled(level) {
		e.sink.Info(level, msg, keysAndValues...)
	}
}

// listen records the error of a line in which the reflector names itself: those lines are
// about failures. The client, the functions of a ListWatch and the WatchErrorHandler use the
// same logger, and the reflector logs a server without watch-list without its name.
func (e *ear) listen(msg string, keysAndValues []any) {
	bookmark := strings.Contains(msg, "event bookmark")
	reflector := bookmark // this warning has no key "reflector"
	var err error
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		switch keysAndValues[i] {
		case "reflector":
			reflector = true
		case "err":
			err, _ = keysAndValues[i+1].(error)
		}
	}
	if reflector && err != nil {
		e.heard(err, bookmark)
	}
}

func (e *ear) Error(err error, msg string, keysAndValues ...any) {
	e.GetCallStackHelper()()
	if e.sink != nil {
		e.sink.Error(err, msg, keysAndValues...)
	}
}

func (e *ear) WithValues(keysAndValues ...any) klog.LogSink {
	if e.sink == nil {
		return e
	}
	return e.to(e.sink.WithValues(keysAndValues...))
}

func (e *ear) WithName(name string) klog.LogSink {
	if e.sink == nil {
		return e
	}
	return e.to(e.sink.WithName(name))
}

// WithCallDepth keeps file and line of the log correct.
func (e *ear) WithCallDepth(depth int) klog.LogSink {
	if s, ok := e.sink.(interface{ WithCallDepth(int) klog.LogSink }); ok {
		return e.to(s.WithCallDepth(depth))
	}
	return e
}

// GetCallStackHelper does the same for loggers of tests, which use testing.TB.Helper.
func (e *ear) GetCallStackHelper() func() {
	if s, ok := e.sink.(interface{ GetCallStackHelper() func() }); ok {
		return s.GetCallStackHelper()
	}
	return func() {}
}

func (e *ear) to(sink klog.LogSink) *ear {
	c := *e
	c.sink = sink
	return &c
}
