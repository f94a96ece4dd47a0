package calls

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"
)

// Checks is the key of a *Memory that all calls of a Run share.
type Checks struct{}

const (
	checkLasts = time.Hour
	maxChecks  = 1 << 16 // about 4 MB
)

// A Memory has the checks that succeeded, for an hour each. The zero Memory is ready. It is safe for concurrent use.
type Memory struct {
	mu     sync.Mutex // guards passed
	passed map[[16]byte]time.Time
}

// passedKey returns the key of a check. subject has no zero byte.
func passedKey(subject, value string) (key [16]byte) {
	sum := sha256.Sum256([]byte(subject + "\x00" + value))
	return [16]byte(sum[:])
}

// Passed notes in the Memory of ctx, if it has one, that subject has passed the check of value.
func Passed(ctx context.Context, subject, value string) {
	m, ok := ctx.Value(Checks{}).(*Memory)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.passed == nil {
		m.passed = map[[16]byte]time.Time{}
	}
	for other := range m.passed {
		if len(m.passed) < maxChecks {
			break
		}
		delete(m.passed, other) // any one: the next call checks it again
	}
	m.passed[passedKey(subject, value)] = time.Now()
}

// HasPassed reports whether the Memory of ctx has the check of value, which was at most an hour ago.
func HasPassed(ctx context.Context, subject, value string) bool {
	m, ok := ctx.Value(Checks{}).(*Memory)
	if !ok {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.passed[passedKey(subject, value)]
	return ok && time.Since(at) < checkLasts
}
