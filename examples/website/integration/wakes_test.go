package integration_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/operator"
)

// provider is a DNS service whose errors have the id of the request, as those of cloud providers.
type provider struct {
	signal *lab.Signal
	mu     sync.Mutex
	down   bool
	puts   []time.Time
	host   string
}

func (p *provider) Put(_ context.Context, _, host string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.signal.Notify()
	p.puts = append(p.puts, time.Now())
	if p.down {
		return fmt.Errorf("dns: the service returned 503 (request id %d)", len(p.puts))
	}
	p.host = host
	return nil
}

func (p *provider) Delete(context.Context, string) error { return nil }

// set changes the service, and returns the number of its calls before.
func (p *provider) set(down bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	return len(p.puts)
}

// statusWrites counts the requests that write a status.
type statusWrites struct {
	mu sync.Mutex
	n  int
}

// wrap has the form of rest.Config.Wrap.
func (s *statusWrites) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/status") {
			s.mu.Lock()
			s.n++
			s.mu.Unlock()
		}
		return next.RoundTrip(req)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (s *statusWrites) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// TestServerWakes: a new website and each change of one cost a call with work and at most one that
// confirms it. While the DNS service is down, the operator backs off, although each error has
// another text. The status does not show errors that have not lasted. A corrected spec does not wait.
func TestServerWakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dns := &provider{signal: &w.Signal}
	writes := &statusWrites{}
	config := rest.CopyConfig(w.admin)
	config.Wrap(writes.wrap)
	op, err := controller.New(config, operator.Options{Name: name, Namespace: namespace}, dns)
	if err != nil {
		t.Fatal(err)
	}
	w.runHere(op)
	// shows waits until the status is of the newest spec, and the record too.
	shows := func(host, reason string) {
		t.Helper()
		w.await(func() error {
			got, err := w.sites.Get(t.Context(), "blog", metav1.GetOptions{})
			if err != nil {
				return err
			}
			ready := meta.FindStatusCondition(got.Status.Conditions, "Ready")
			dns.mu.Lock()
			defer dns.mu.Unlock()
			if dns.host != host || ready == nil || ready.Reason != reason || ready.ObservedGeneration != got.Generation {
				return fmt.Errorf("the record is %q and the condition %+v, want %q and %s", dns.host, ready, host, reason)
			}
			return nil
		})
	}

	w.create("blog")
	shows("blog.example.com", "Progressing")
	const edits = 6
	for n := range edits {
		host := fmt.Sprintf("www%d.example.com", n)
		w.edit("blog", fmt.Sprintf(`{"spec":{"host":%q}}`, host))
		shows(host, "Progressing")
	}
	puts := dns.set(false)
	t.Logf("%d calls for a new website and %d changes", puts, edits)
	if puts > 2*(1+edits) {
		t.Errorf("%d calls for a new website and %d changes, want at most %d", puts, edits, 2*(1+edits))
	}

	before, written := dns.set(true), writes.count()
	w.edit("blog", `{"spec":{"host":"down.example.com"}}`)
	const failures = 10 // the delays are 2.5ms, 5ms, ... at the least
	w.await(func() error {
		if n := dns.set(true) - before; n < failures {
			return fmt.Errorf("%d calls, want %d", n, failures)
		}
		return nil
	})
	w.await(func() error {
		if n := dns.set(true) - before; n < failures+2 {
			return fmt.Errorf("%d calls, want %d", n, failures+2)
		}
		return nil
	})
	// Three calls may not count, so the last two delays are 0.3s and 0.6s at the least.
	dns.mu.Lock()
	last := dns.puts[before+failures+1]
	took, lasted := last.Sub(dns.puts[before+failures-1]), last.Sub(dns.puts[before])
	dns.mu.Unlock()
	t.Logf("%d calls have written the status %d times, the last two took %v", dns.set(true)-before, writes.count()-written, took)
	if took < 900*time.Millisecond {
		t.Errorf("two more calls have taken %v, want at least 0.9s", took)
	}
	if n := writes.count() - written; n > 0 && lasted < 9*time.Second { // it is shown after 10s
		t.Errorf("%d writes of the status in %d calls, want none before an error has lasted", n, failures+2)
	}
	dns.set(false)
	began := time.Now()
	w.edit("blog", `{"spec":{"host":"up.example.com"}}`)
	shows("up.example.com", "Progressing")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a corrected spec has waited %v", took)
	}
}
