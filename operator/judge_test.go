package operator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

var errCard = errors.New("the card has expired")

// oneBox is an API server with one box. It notes the patches of the status.
type oneBox struct {
	metadata string // further fields, which begin with a comma

	mu      sync.Mutex
	written []string
}

func (s *oneBox) RoundTrip(r *http.Request) (*http.Response, error) {
	box := `{"apiVersion":"box.example.com/v1","kind":"Box","metadata":{"namespace":"default","name":"a","uid":"u1","resourceVersion":"2","generation":1` + s.metadata + `},"spec":{}}`
	if r.Method != http.MethodPatch {
		return servedBox(http.StatusOK, box)(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/status") {
		s.written = append(s.written, string(body))
	}
	return servedBox(http.StatusOK, box)(r)
}

// writes returns the patches of the status.
func (s *oneBox) writes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.written, "\n")
}

// TestReadyFollowsTheLoop: Ready is false if the loop does not retry an error, by Loop.Classify or MaxAttempts, also
// before the error has lasted.
func TestReadyFollowsTheLoop(t *testing.T) {
	card := func(err error) error { return fmt.Errorf("card: %w", err) }
	blocked := &finalizer.BlockedError{Steps: []finalizer.BlockedStep{{Name: "bucket", Err: errCard}}, After: time.Hour, Err: errCard}
	terminal := func(err error) error { return fmt.Errorf("%w: %w", reconcile.ErrTerminal, err) }
	for name, tc := range map[string]struct {
		fails    error
		cleanup  bool // fails is the error of Cleanup
		classify func(error) error
		attempts int
		want     []string // in the writes within a second
		calls    int      // within half a minute; 0 means any
	}{
		"plain":                     {fails: errCard},
		"terminal":                  {fails: card(errCard), classify: terminal, want: []string{`"reason":"Terminal"`, `"message":"card: the card has expired"`, `"status":"False"`}, calls: 1},
		"not changed":               {fails: errCard, classify: func(err error) error { return err }},
		"no error":                  {fails: errCard, classify: func(error) error { return nil }, want: []string{`"reason":"Reconciled"`, `"status":"True"`}, calls: 1},
		"waits":                     {fails: &waits{time.Hour}, classify: terminal, want: []string{`"reason":"Waiting"`}},
		"classified as a wait":      {fails: errCard, classify: func(error) error { return &waits{time.Hour} }, want: []string{`"reason":"Waiting"`}},
		"a panic in Classify":       {fails: errCard, classify: func(error) error { panic("no such card") }, attempts: 1, want: []string{`"reason":"Panic"`, "no such card"}, calls: 1},
		"parked":                    {fails: errCard, attempts: 3, want: []string{`"reason":"Error"`, `"status":"False"`}, calls: 3},
		"not yet parked":            {fails: errCard, attempts: 30},
		"a cleanup is terminal":     {fails: errCard, cleanup: true, classify: terminal, want: []string{`"reason":"Terminal"`}, calls: 1},
		"a cleanup is blocked":      {fails: blocked, cleanup: true, classify: terminal, want: []string{`"reason":"Terminating"`, `"type":"Terminating"`}},
		"a blocked cleanup, joined": {fails: errors.Join(blocked, card(errCard)), cleanup: true, classify: func(error) error { return terminal(errors.New("another")) }, want: []string{`"reason":"Terminal"`, `"type":"Terminating"`}, calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &oneBox{}
				if tc.cleanup {
					api.metadata = `,"deletionTimestamp":"2000-01-01T00:00:00Z","finalizers":["` + boxFinalizer + `"]`
				}
				op, err := operator.New(&rest.Config{Host: "http://127.0.0.1:1", Transport: api}, operator.Options{Name: "x"})
				if err != nil {
					t.Fatal(err)
				}
				calls := 0
				r := operator.Reconciler[*Box]{Reconcile: func(context.Context, *Box) (reconcile.Result, error) {
					calls++
					return reconcile.Result{}, tc.fails
				}}
				if tc.cleanup {
					r.Finalizer = boxFinalizer
					r.Cleanup = func(context.Context, *Box) error { calls++; return tc.fails }
				}
				c := operator.Kind(op, boxVersion.WithResource("boxes"), r)
				c.Loop.Classify, c.Loop.MaxAttempts = tc.classify, tc.attempts
				start(t, op, testlog.New())
				time.Sleep(time.Second)
				synctest.Wait()
				got := api.writes()
				for _, want := range tc.want {
					if !strings.Contains(got, want) {
						t.Errorf("the status is written as %q, want %s", got, want)
					}
				}
				if tc.want == nil && got != "" {
					t.Errorf("the status is written as %q, want no write", got)
				}
				if time.Sleep(30 * time.Second); tc.calls > 0 && calls != tc.calls {
					t.Errorf("%d calls in half a minute, want %d", calls, tc.calls)
				}
			})
		})
	}
}

// waits is an error of a call that waits.
type waits struct{ after time.Duration }

func (w *waits) Error() string        { return "waits" }
func (w *waits) Waits() time.Duration { return w.after }
