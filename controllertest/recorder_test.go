package controllertest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// A recorder is the testing.TB of a test that is expected to fail.
type recorder struct {
	testing.TB
	ctx     context.Context
	failed  bool
	skipped bool

	mu     sync.Mutex
	told   []string
	logged []string
}

// record runs a test, and returns what it told.
func record(t *testing.T, test func(testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t, ctx: t.Context()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(r)
	}()
	<-done
	return r
}

func (r *recorder) errors() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.told, "\n")
}

func (r *recorder) logs() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.logged, "\n")
}

func (r *recorder) tell(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.told = append(r.told, text)
}

func (r *recorder) Helper()                   {}
func (r *recorder) Name() string              { return "Recorded" }
func (r *recorder) Context() context.Context  { return r.ctx }
func (r *recorder) Error(args ...any)         { r.tell(fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, a ...any) { r.tell(fmt.Sprintf(f, a...)) }
func (r *recorder) Log(args ...any)           { r.Logf("%s", fmt.Sprint(args...)) }

func (r *recorder) Logf(f string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logged = append(r.logged, fmt.Sprintf(f, a...))
}

func (r *recorder) Fatal(args ...any) {
	r.tell(fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Skipf(string, ...any) {
	r.skipped = true
	runtime.Goexit()
}
