package shutdown_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/controllerkit/controllerkit/internal/testpipe"
	"github.com/controllerkit/controllerkit/shutdown"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child() // see context_test.go
		return
	}
	goleak.VerifyTestMain(patient{m})
}

// patient waits after the tests for the stack of a late part that was still being written
// when Run returned: with thousands of goroutines that takes longer than goleak waits.
type patient struct{ *testing.M }

func (p patient) Run() int {
	code := p.M.Run()
	for range 300 {
		var stacks strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil || !strings.Contains(stacks.String(), "shutdown.(*round).stop") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return code
}

// journal records what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) get() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// part runs until told to stop, takes drain to do so and returns err.
func (j *journal) part(name string, drain time.Duration, err error) (string, func(context.Context) error) {
	return name, func(ctx context.Context) error {
		<-ctx.Done()
		j.add("%s told: %v", name, context.Cause(ctx))
		time.Sleep(drain)
		j.add("%s stopped", name)
		return err
	}
}

func probe(h interface{ Ready() (int, string) }) string {
	c, b := h.Ready()
	return fmt.Sprint(c, " ", b)
}

type prober struct{ g *shutdown.Group }

func (p prober) Ready() (int, string) {
	w := httptest.NewRecorder()
	p.g.Ready().ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
	return w.Code, w.Body.String()
}

// unhashable is an error that == panics on.
type unhashable []string

func (unhashable) Error() string { return "unhashable" }

// holder can be compared by its type, and not by what is in it.
type holder struct{ detail any }

func (holder) Error() string { return "holder" }

// inMemory serves handler with Server's timeouts until the test ends. The client uses
// HTTP/2 if h2 is true.
func inMemory(t *testing.T, h2 bool, handler http.HandlerFunc) (*testpipe.Listener, *http.Client) {
	t.Helper()
	p := testpipe.Listen()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetUnencryptedHTTP2(h2)
	server := &http.Server{Handler: handler, Protocols: protocols}
	shutdown.SetTimeouts(server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(p) }()
	transport := &http.Transport{
		Protocols:   protocols,
		DialContext: p.DialContext,
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-ended
	})
	return p, &http.Client{Transport: transport}
}
