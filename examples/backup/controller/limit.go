package controller

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// Limit bounds the number of backups that are reconciled at once. It can change at any time, which the
// field Workers of the loop cannot. The zero Limit lets none pass.
type Limit struct {
	mu      sync.Mutex // guards the fields below
	most    int
	running int
	changed chan struct{} // is closed at the next change of most or running; nil if no call waits
}

// Set changes the limit. Calls above a lower limit finish, and no new ones begin.
func (l *Limit) Set(most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = most
	l.changeLocked()
}

// acquire waits for a free place. It returns false if ctx ends first.
func (l *Limit) acquire(ctx context.Context) bool {
	for {
		l.mu.Lock()
		if l.running < l.most {
			l.running++
			l.mu.Unlock()
			return true
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// exceeded reports whether more places are taken than the limit allows.
func (l *Limit) exceeded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running > l.most
}

// release frees a place.
func (l *Limit) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.changeLocked()
}

// changeLocked wakes the calls that wait.
func (l *Limit) changeLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// limited is a queue whose keys wait for the Limit before the loop gets them. A wait in Reconcile would
// use up the timeout of the call.
type limited struct {
	*queue.Queue[types.NamespacedName]
	limit *Limit
}

// A method with another signature would not be used, and the limit would have no effect.
var _ controllerkit.ContextGetter[types.NamespacedName] = limited{}

// GetContext waits for a free place, and then for a key: one that it took first would count as running while
// it waits, and later keys would overtake it.
func (q limited) GetContext(ctx context.Context) (key types.NamespacedName, priority int, ok bool) {
	for q.limit.acquire(ctx) {
		key, priority, ok = q.Queue.GetContext(ctx)
		if ok && !q.limit.exceeded() {
			return key, priority, true
		}
		q.limit.release()
		if !ok {
			break
		}
		// The limit became lower while this worker waited for a key.
		q.AddWith(controllerkit.AddOptions{Priority: priority}, key)
		q.Queue.Done(key)
	}
	return types.NamespacedName{}, 0, false
}

// Done ends the key and frees its place.
func (q limited) Done(key types.NamespacedName) {
	q.Queue.Done(key)
	q.limit.release()
}
