// Package testlog has loggers for tests. [Logs] keeps every line, [Text] writes it, and
// [Silent] drops it. All of them end the process at a line of this library that some logger
// could not print.
package testlog

import (
	"context"
	"slices"
	"sync"

	"k8s.io/klog/v2"
)

// Line is one line of log.
type Line struct {
	Level   int // -1 for errors
	Message string
	Err     error
	Values  map[string]any
}

// Logs keeps the lines that are logged with its Context. Copies share them.
type Logs struct {
	Hook func(message string) // is called first; nil means none

	mu    *sync.Mutex // guards lines
	lines *[]Line
	with  []any
}

// New returns Logs without lines.
func New() Logs { return Logs{mu: &sync.Mutex{}, lines: &[]Line{}} }

// Context returns ctx with the logger.
func (l Logs) Context(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.New(l))
}

// All returns all lines.
func (l Logs) All() []Line { return l.filter(func(Line) bool { return true }) }

// Find returns the lines with the message.
func (l Logs) Find(message string) []Line {
	return l.filter(func(n Line) bool { return n.Message == message })
}

// Having returns the lines that have a value for the key.
func (l Logs) Having(key string) []Line {
	return l.filter(func(n Line) bool { return n.Values[key] != nil })
}

func (l Logs) filter(keep func(Line) bool) []Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(*l.lines), func(n Line) bool { return !keep(n) })
}

// Init is a method of a klog.LogSink.
func (l Logs) Init(klog.RuntimeInfo) {}

// Enabled is a method of a klog.LogSink: every level is.
func (l Logs) Enabled(int) bool { return true }

// WithName is a method of a klog.LogSink.
func (l Logs) WithName(string) klog.LogSink { return l }

// WithValues is a method of a klog.LogSink.
func (l Logs) WithValues(kv ...any) klog.LogSink {
	l.with = append(slices.Clone(l.with), kv...)
	return l
}

// Info is a method of a klog.LogSink.
func (l Logs) Info(level int, msg string, kv ...any) { l.add(Line{Level: level, Message: msg}, kv) }

// Error is a method of a klog.LogSink.
func (l Logs) Error(err error, msg string, kv ...any) {
	l.add(Line{Level: -1, Message: msg, Err: err}, kv)
}

func (l Logs) add(n Line, kv []any) {
	check(n.Level, n.Err, n.Message, l.with, kv)
	if l.Hook != nil {
		l.Hook(n.Message)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n.Values = map[string]any{}
	kv = append(slices.Clone(l.with), kv...)
	for i := 0; i+1 < len(kv); i += 2 {
		n.Values[kv[i].(string)] = kv[i+1]
	}
	*l.lines = append(*l.lines, n)
}

// discard is a logger that drops every line.
type discard struct{}

func (discard) Init(klog.RuntimeInfo)            {}
func (discard) Enabled(int) bool                 { return false }
func (discard) Info(int, string, ...any)         {}
func (discard) Error(error, string, ...any)      {}
func (d discard) WithName(string) klog.LogSink   { return d }
func (d discard) WithValues(...any) klog.LogSink { return d }
