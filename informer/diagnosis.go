package informer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/internal/reflectorlog"
	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// If a watch is refused this often and for this long although the list was allowed, Run ends. A
// server that has just started does not know its roles for some seconds, and two servers can
// start one after the other.
const (
	minRefusals = 3
	minRefused  = 5 * time.Second
)

// failed records an error that ended a list or watch. ctx is that of the informer, or of a part
// of it, which does not end Run: the other parts go on. An error after until does not count.
func (m *member) failed(ctx context.Context, err error, until time.Time, refused chan<- error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = report{err: err, at: time.Now(), of: alive.From(ctx)}
	m.notDecoded(ctx, err)
	if m.last.of.IsPart() || !isRefusal(err) || !cache.IsDone(m.checkers[0]) || time.Now().After(until) {
		return
	}
	if m.refusals++; m.refusals == 1 {
		m.since = m.last.at
	}
	if m.refusals < minRefusals || m.last.at.Sub(m.since) < minRefused {
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

// timeoutField is the field that a user of the Set, or of package operator, sets.
const timeoutField = "Set.Timeout (Options.StartTimeout of an operator)"

// unsynced returns an error with a line for each member that is not synced within the time, and nil if
// all are, which may happen at the last moment.
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
		err := m.alive.Blocked()
		switch {
		case err != nil:
			err = fmt.Errorf("%w within %v: %q: %w", ErrNotSynced, timeout, m.name, err)
			if last.err != nil {
				err = fmt.Errorf("%w: the last error: %s: %s: %w", err, m.of(last.of), m.reason(last.err), kube.PrintableError(last.err, maxText))
			}
		case missing[0].Done() != m.checkers[0].Done(): // comparing the interfaces could panic
			err = fmt.Errorf("%w within %v: %q: the informer is synced, but %s has not worked off the initial list: it does more than put keys into a queue, was removed, or is another informer's, or the process has too little CPU", ErrNotSynced, timeout, m.name, missing[0].Name())
		case m.endless:
			err = fmt.Errorf("%w within %v: %q: its first list still brings data: if it is that long, %s must be longer; otherwise the server, or a proxy, never ends it", ErrNotSynced, timeout, m.name, timeoutField)
		case last.err == nil:
			also := ""
			if timeout <= reflectorlog.BookmarkWarning {
				also = ", or the end of the initial events is never marked, which shows only after " + reflectorlog.BookmarkWarning.String()
			}
			err = fmt.Errorf("%w within %v: %q: list and watch are neither refused nor complete, and no data is seen: the server cannot be reached, or a conversion webhook fails%s; without the transport of EndSilentWatches, %s must be longer than the first list", ErrNotSynced, timeout, m.name, also, timeoutField)
		case last.bookmark:
			err = fmt.Errorf("%w within %v: %q: the server took the watch but does not mark the end of the initial events: it, or a proxy, drops the bookmark k8s.io/initial-events-end; setting KUBE_FEATURE_WatchListClient=false in the environment avoids the need for it: %w", ErrNotSynced, timeout, m.name, kube.PrintableError(last.err, maxText))
		case unreachable(last.err):
			err = fmt.Errorf("%w within %v: %q: %s, when client-go last tried, %v ago: it pauses for up to a minute between attempts, so with a longer %s Run notices a server that is back: %w", ErrNotSynced, timeout, m.name, m.reason(last.err), time.Since(last.at).Round(time.Second), timeoutField, kube.PrintableError(last.err, maxText))
		case m.undecodable(1) != nil:
			err = fmt.Errorf("%w within %v: %w", ErrNotSynced, timeout, m.undecodable(1))
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
	case apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), "(re)initializing"):
		return fmt.Sprintf("cannot %s %s: the API server cannot list the stored objects, such as while a conversion webhook fails", verb, resource)
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

func (m *member) heard(err error, bookmark bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = report{err: err, at: time.Now(), bookmark: bookmark}
}
