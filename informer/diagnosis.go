package informer

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// failed records an error that ended a list or watch. If a watch is refused twice although
// the list was allowed, Run ends. A server that has just started and does not know its
// roles yet may refuse once.
func (m *member) failed(err error, until time.Time, refused chan<- error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = report{err: err, at: time.Now()}
	if !isRefusal(err) || !cache.IsDone(m.checkers[0]) || time.Now().After(until) {
		return
	}
	if m.refusals++; m.refusals < 2 {
		return
	}
	select {
	case refused <- fmt.Errorf("%w: %q: its cache was filled and then went stale: %s: %w", ErrNotSynced, m.name, m.reason(err), kube.PrintableError(err, maxText)):
	default: // Run ends with the first one
	}
}

const (
	maxText = 2048 // bounds the text of an error
	maxName = 253  // is the longest name of a resource or group
)

// isRefusal reports whether the same request will fail again.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

// missing returns the checkers that are not done.
func (m *member) missing() []cache.DoneChecker {
	return slices.DeleteFunc(slices.Clone(m.checkers), cache.IsDone)
}

// unsynced returns an error with a line for each member that is not synced, and nil if all
// are, which may happen at the last moment.
func unsynced(members []*member, timeout time.Duration) error {
	var errs []error
	for _, m := range members {
		missing := m.missing()
		if len(missing) == 0 {
			continue
		}
		m.mu.Lock()
		last := m.last
		m.mu.Unlock()
		var err error
		switch {
		case missing[0].Done() != m.checkers[0].Done(): // comparing the interfaces could panic
			err = fmt.Errorf("%w within %v: %q: the informer is synced, but %s has not worked off the initial list: it does more than put keys into a queue, was removed, or is another informer's", ErrNotSynced, timeout, m.name, missing[0].Name())
		case last.err == nil:
			also := ""
			if timeout <= bookmarkWarning {
				also = ", or the end of the initial events is never marked, which shows only after " + bookmarkWarning.String()
			}
			err = fmt.Errorf("%w within %v: %q: list and watch are neither refused nor complete: the server cannot be reached, or there is more to list than Timeout allows%s", ErrNotSynced, timeout, m.name, also)
		case last.bookmark:
			err = fmt.Errorf("%w within %v: %q: the server took the watch but does not mark the end of the initial events: it, or a proxy, drops the bookmark k8s.io/initial-events-end; setting KUBE_FEATURE_WatchListClient=false in the environment avoids the need for it: %w", ErrNotSynced, timeout, m.name, kube.PrintableError(last.err, maxText))
		case unreachable(last.err):
			err = fmt.Errorf("%w within %v: %q: %s, when client-go last tried, %v ago: it pauses for up to a minute between attempts, so a longer Set.Timeout notices a server that is back: %w", ErrNotSynced, timeout, m.name, m.reason(last.err), time.Since(last.at).Round(time.Second), kube.PrintableError(last.err, maxText))
		default:
			err = fmt.Errorf("%w within %v: %q: %s: %w", ErrNotSynced, timeout, m.name, m.reason(last.err), kube.PrintableError(last.err, maxText))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// reason explains what err means for an informer, and names the cure.
func (m *member) reason(err error) string {
	verb := "watch"
	if text := err.Error(); strings.HasPrefix(text, "failed to list") || strings.Contains(text, "list result") { // the reflector's words
		verb = "list"
	}
	group, resource := "", m.name
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		if d := status.Status().Details; d != nil && d.Kind != "" {
			// Of a refused request, Kind holds the resource.
			group, resource = kube.Printable(d.Group, maxName), kube.Printable(d.Kind, maxName)
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		if group == "" {
			// The response did not name the resource, or it is in the core group.
			resource, group, _ = strings.Cut(resource, ".")
		}
		return fmt.Sprintf("forbidden to %s: a Role or ClusterRole must allow verbs %q on resources %q in apiGroups %q", verb, []string{"list", "watch"}, []string{resource}, []string{group})
	case apierrors.IsUnauthorized(err):
		return fmt.Sprintf("unauthorized to %s %s: the server does not accept the credentials", verb, resource)
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("cannot %s %s: the server does not serve it: install its CustomResourceDefinition, or check group and version", verb, resource)
	case apierrors.IsMethodNotSupported(err):
		return fmt.Sprintf("cannot %s %s: the server does not support that verb for it", verb, resource)
	case apierrors.IsTooManyRequests(err):
		return fmt.Sprintf("cannot %s %s: the server is overloaded", verb, resource)
	case unreachable(err):
		return fmt.Sprintf("cannot %s %s: the server could not be reached", verb, resource)
	}
	return fmt.Sprintf("cannot %s %s", verb, resource)
}

// unreachable reports whether the connection failed or the server did not respond. Missing
// trust or credentials do not count, although net/http wraps them in the same net.Error.
func unreachable(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op != "remote error" // a TLS error of the server
	}
	timeout, ok := errors.AsType[net.Error](err)
	return utilnet.IsConnectionRefused(err) || ok && timeout.Timeout()
}

// listen returns a logger that also records failures. Some failures of a reflector do not
// reach its watch error handler: it repeats the request and only logs the reason, so the
// error is taken from the log line.
func listen(logger klog.Logger, m *member) klog.Logger {
	e := &ear{m: m, limit: logger.GetV() + retryLevel, sink: logger.GetSink()}
	return logger.WithSink(e.WithCallDepth(1)) // 1 for the method of ear
}

const (
	// retryLevel is the verbosity at which the reflector logs why it repeats its first
	// request.
	retryLevel = 2
	// bookmarkWarning is the time after which the reflector reports a missing end of the
	// initial events.
	bookmarkWarning = 10 * time.Second
)

// ear is a sink that records failures and passes all lines to sink, which is nil if logging
// is off.
type ear struct {
	m     *member
	limit int // the highest level that it records
	sink  klog.LogSink
}

func (e *ear) Init(klog.RuntimeInfo) {} // the owner of sink has initialized it

func (e *ear) Enabled(level int) bool {
	return level <= e.limit && !e.m.settled.Load() || e.sink != nil && e.sink.Enabled(level)
}

func (e *ear) Info(level int, msg string, keysAndValues ...any) {
	e.GetCallStackHelper()()
	if !e.m.settled.Load() {
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
		e.m.heard(err, bookmark)
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

func (m *member) heard(err error, bookmark bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = report{err: err, at: time.Now(), bookmark: bookmark}
}
