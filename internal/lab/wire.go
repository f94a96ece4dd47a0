package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// Wire records the requests that its proxies see, see [Proxy] and [Intercept]. A response
// with 403 fails the test, because the processes have only the rights of config/rbac.yaml.
type Wire struct {
	t interface {
		Errorf(format string, args ...any)
	}

	mu      sync.Mutex
	ops     []Op // requests with a response, also with a lost one
	before  func(Op) bool
	after   func(Op) bool
	refused bool // whether a 403 is expected or was reported
}

// NewWire returns a Wire for the test.
func NewWire(t interface {
	Errorf(format string, args ...any)
}) *Wire {
	return &Wire{t: t}
}

// Before is the function before of a proxy.
func (w *Wire) Before(op Op) bool {
	w.mu.Lock()
	before := w.before
	w.mu.Unlock()
	return before == nil || before(op)
}

// After is the function after of a proxy.
func (w *Wire) After(op Op) bool {
	w.mu.Lock()
	w.ops = append(w.ops, op)
	after := w.after
	if op.Status == http.StatusForbidden && !w.refused {
		w.refused = true // report only the first 403
		w.t.Errorf("%s returned 403: config/rbac.yaml lacks a right that the controller needs\n%s", op, op.Body)
	}
	w.mu.Unlock()
	return after == nil || after(op)
}

// Hook makes the proxies call before and after. Nil removes the calls.
func (w *Wire) Hook(before, after func(Op) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after = before, after
}

// AllowRefusals makes the wire accept responses 403 from now on.
func (w *Wire) AllowRefusals() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = true
}

// Ops returns all requests so far.
func (w *Wire) Ops() []Op {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ops)
}

// Writes returns the writes since a time, without writes of Leases.
func (w *Wire) Writes(since time.Time) []Op {
	return slices.DeleteFunc(w.Ops(), func(op Op) bool { return !op.Write || op.Lease || !op.At.After(since) })
}

// HandOver returns the times of the last release of the Lease and of the next
// acquisition.
func (w *Wire) HandOver() (release, acquire time.Time, err error) {
	for _, op := range w.Ops() {
		if !op.Lease || op.Method != http.MethodPut || op.Status != http.StatusOK {
			continue
		}
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(op.Body), nil, nil) // JSON or protobuf
		if err != nil {
			return release, acquire, err
		}
		switch holder := obj.(*coordinationv1.Lease).Spec.HolderIdentity; {
		case holder == nil || *holder == "":
			release, acquire = op.At, time.Time{}
		case !release.IsZero() && acquire.IsZero():
			acquire = op.At
		}
	}
	if release.IsZero() || acquire.IsZero() {
		err = errors.New("no release and acquisition of the Lease was seen")
	}
	return release, acquire, err
}

// OpsText returns the requests as lines.
func OpsText(ops []Op) string {
	lines := make([]string, len(ops))
	for i, op := range ops {
		lines[i] = fmt.Sprintf("%s %d %s", op, op.Status, op.Body)
	}
	return strings.Join(slices.Compact(lines), "\n")
}

// Resource returns the group and the resource of an API path in the notation of an RBAC
// rule. Other paths have no group, and the path as the resource.
func Resource(path string) (group, resource string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:] // api, version
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = parts[1], parts[3:] // apis, group, version
	default:
		return "", path
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) > 2 {
		return group, parts[0] + "/" + parts[2]
	}
	return group, parts[0]
}

// Signal wakes goroutines that wait for a change. The zero Signal is ready to use.
type Signal struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil if no goroutine waits
}

// Notify wakes all calls of Await.
func (s *Signal) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Await calls cond after each change until cond returns nil. If the limit passes or ctx is
// done first, Await returns an error that wraps the last error of cond.
func (s *Signal) Await(ctx context.Context, limit time.Duration, cond func() error) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		s.mu.Lock()
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		last := cond()
		if last == nil {
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return fmt.Errorf("lab: still failing after %v: %w", limit, last)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		}
	}
}
