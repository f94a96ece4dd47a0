package late

import (
	"net/http"
	"slices"
	"testing"
)

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestChain: a client that is made first passes its requests through the transports since Set,
// the last one first, and each client has its own.
func TestChain(t *testing.T) {
	var passed []string
	named := func(name string) func(http.RoundTripper) http.RoundTripper {
		return func(next http.RoundTripper) http.RoundTripper {
			passed = append(passed, "new "+name)
			return transportFunc(func(r *http.Request) (*http.Response, error) {
				passed = append(passed, name)
				return next.RoundTrip(r)
			})
		}
	}
	server := transportFunc(func(*http.Request) (*http.Response, error) {
		passed = append(passed, "server")
		return nil, nil
	})
	var c Chain
	client := c.Wrap(server)
	check := func(when string, client http.RoundTripper, want ...string) {
		t.Helper()
		passed = nil
		if _, err := client.RoundTrip(nil); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(passed, want) {
			t.Errorf("%s, a request passed %q, want %q", when, passed, want)
		}
	}
	check("before Set", client, "server")
	c.Set(named("a"), named("b"))
	check("after Set", client, "new a", "new b", "b", "a", "server")
	check("after the first request", client, "b", "a", "server")
	check("through another client", c.Wrap(server), "new a", "new b", "b", "a", "server")
}
