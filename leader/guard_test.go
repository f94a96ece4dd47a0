package leader_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/leader"
)

// onceLeases lets an Elector acquire a Lease and renew it never.
type onceLeases struct{}

func (onceLeases) Create(_ context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	lease.UID = "uid"
	return lease, nil
}

func (onceLeases) Update(context.Context, *coordinationv1.Lease, metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return nil, errors.New("unreachable")
}

func (onceLeases) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
}

func (onceLeases) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, errors.New("unreachable")
}

// guardedTerm is how long a term of whileLeading lasts.
const guardedTerm = 10 * time.Second

// whileLeading calls f as the work of a leader that cannot renew its Lease.
func whileLeading(t *testing.T, f func(ctx context.Context)) {
	t.Helper()
	elector := &leader.Elector{
		Leases: onceLeases{}, Namespace: "ns", Name: "lease",
		LeaseDuration: guardedTerm * 3 / 2, RenewDeadline: guardedTerm, RetryPeriod: 2 * time.Second,
	}
	ctx, stop := context.WithCancel(t.Context())
	err := elector.Run(ctx, func(ctx context.Context) error {
		f(ctx)
		stop()
		return nil
	})
	if err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// answers is a transport that keeps its requests and makes the responses.
type answers struct {
	mu     sync.Mutex
	sent   []*http.Request
	status []int // of the next answers; 200 after these
}

func (a *answers) RoundTrip(req *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = append(a.sent, req)
	if req.Body != nil {
		req.Body.Close()
	}
	res := &http.Response{
		StatusCode: http.StatusOK, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(strings.NewReader(`{"kind":"ConfigMap","apiVersion":"v1"}`)),
	}
	if len(a.status) > 0 {
		res.StatusCode, a.status = a.status[0], a.status[1:]
		res.Header.Set("Retry-After", "4")
	}
	return res, nil
}

func (a *answers) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.sent)
}

// closing is a body that knows whether it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// TestGuard: the requests that are sent, by method and by context. The contexts of the leader
// are also tried without their end, because the clock decides and not the context.
//
// Proves L7.
func TestGuard(t *testing.T) {
	wrappers := map[string]func(http.RoundTripper) http.RoundTripper{
		"Guard":   leader.Guard,
		"GuardAs": leader.GuardAs("system:serviceaccount:shop:shop-controller"),
	}
	for name, wrap := range wrappers {
		for _, tt := range []struct {
			methods string
			query   string
			header  string
			reads   bool
		}{
			{methods: "GET HEAD OPTIONS", reads: true},
			{methods: "POST PUT PATCH DELETE CONNECT BREW"},
			// Exec by WebSocket: the headers of any client, of client-go's, and of SPDY by GET.
			{methods: "GET", header: "Upgrade"},
			{methods: "GET", header: "Sec-WebSocket-Protocol"},
			{methods: "GET", header: "X-Stream-Protocol-Version"},
			{methods: "GET", header: "Upgrade", query: "?watch=true", reads: true},
		} {
			for method := range strings.FieldsSeq(tt.methods) {
				t.Run(name+" "+method+tt.query+" "+tt.header, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						try := func(when string, ctx context.Context, want string, lost bool) {
							t.Helper()
							if tt.reads {
								want, lost = "", false
							}
							next := &answers{}
							body := &closing{Reader: strings.NewReader("{}")}
							req, err := http.NewRequestWithContext(ctx, method, "http://server/"+tt.query, body)
							if err != nil {
								t.Fatal(err)
							}
							if tt.header != "" {
								req.Header.Set(tt.header, "x")
							}
							res, err := wrap(next).RoundTrip(req)
							if got := errors.Is(err, leader.ErrLost); got != lost {
								t.Errorf("%s: errors.Is(%v, ErrLost) = %v, want %v", when, err, got, lost)
							}
							sent := 1
							if want != "" {
								sent = 0
							}
							var refused controllerkit.UnsentError
							if got := errors.As(err, &refused) && refused.NotSent(); got != (want != "") {
								t.Errorf("%s: NotSent() is true in %v: %t, want %t", when, err, got, want != "")
							}
							if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || (res != nil) != (want == "") {
								t.Errorf("%s: RoundTrip() = %v, %v, want error %q", when, res, err, want)
							}
							if got := next.count(); got != sent {
								t.Errorf("%s: %d requests sent, want %d", when, got, sent)
							}
							if !body.closed {
								t.Errorf("%s: the body is open, want it closed", when)
							}
						}
						const lost = "no longer the leader"
						try("never leading", t.Context(), "client without Guard for the Elector", false)
						whileLeading(t, func(ctx context.Context) {
							endless := context.WithoutCancel(ctx)
							child, cancel := context.WithCancel(ctx)
							defer cancel()
							try("leading", ctx, "", false)
							try("leading, derived", child, "", false)
							time.Sleep(guardedTerm - time.Nanosecond)
							try("until the end of the term", endless, "", false)
							time.Sleep(time.Nanosecond)
							try("the term is over", endless, lost, true)
							try("the term is over, derived", child, lost, true)
							time.Sleep(time.Hour)
							try("long over", endless, lost, true)
						})
					})
				})
			}
		}
	}
}

// TestGuardWithoutBody: a write without a body is refused like one with.
//
// Proves L7.
func TestGuardWithoutBody(t *testing.T) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://server/", nil)
	if err != nil {
		t.Fatal(err)
	}
	next := &answers{}
	if res, err := leader.Guard(next).RoundTrip(req); err == nil {
		res.Body.Close()
		t.Error("a write without leading was sent")
	}
}

// guardedClient is a client of client-go whose requests end in answers.
func guardedClient(t *testing.T, next *answers, change func(*rest.Config)) *kubernetes.Clientset {
	t.Helper()
	config := &rest.Config{Host: "http://server", Transport: next, QPS: -1}
	change(config)
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// TestGuardRetries: client-go retries a write after a Retry-After, but not after the
// end of the term, and errors.Is finds ErrLost in its error.
//
// Proves L7.
func TestGuardRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &answers{status: []int{429, 429, 429, 429}} // each to be repeated 4s later
		client := guardedClient(t, next, func(c *rest.Config) { c.Wrap(leader.Guard) })
		whileLeading(t, func(ctx context.Context) {
			begun := time.Now()
			_, err := client.CoreV1().ConfigMaps("shop").Create(context.WithoutCancel(ctx), &corev1.ConfigMap{}, metav1.CreateOptions{})
			if !errors.Is(err, leader.ErrLost) {
				t.Errorf("Create() = %v, want ErrLost", err)
			}
			if got := next.count(); got != 3 {
				t.Errorf("%d requests sent, want 3: at 0s, 4s and 8s of a term of %v", got, guardedTerm)
			}
			if got := time.Since(begun); got != 12*time.Second {
				t.Errorf("refused after %v, want 12s", got)
			}
		})
	})
}

// TestGuardAsHeaders: the sent request carries user and term, and the
// caller's is not changed.
func TestGuardAsHeaders(t *testing.T) {
	const user = "system:serviceaccount:shop:shop-controller"
	for _, tt := range []struct {
		name   string
		user   string
		groups []string
		method string
		header http.Header
		want   http.Header
		err    string
	}{
		{
			name: "write", user: user, method: http.MethodDelete,
			header: http.Header{"Accept": {"application/json"}},
			want: http.Header{
				"Accept":           {"application/json"},
				"Impersonate-User": {user},
				"Impersonate-Extra-Controllerkit.github.io%2fleader-Term": {"uid/0"},
			},
		},
		{
			name: "groups", user: "jane", groups: []string{"shop", "sales"}, method: http.MethodPost,
			header: http.Header{},
			want: http.Header{
				"Impersonate-User":  {"jane"},
				"Impersonate-Group": {"shop", "sales"},
				"Impersonate-Extra-Controllerkit.github.io%2fleader-Term": {"uid/0"},
			},
		},
		{
			name: "read", user: user, method: http.MethodGet,
			header: http.Header{"Impersonate-User": {"jane"}},
			want:   http.Header{"Impersonate-User": {"jane"}},
		},
		{
			name: "exec by WebSocket", user: user, method: http.MethodGet,
			header: http.Header{"Sec-Websocket-Protocol": {"v5.channel.k8s.io"}},
			want: http.Header{
				"Sec-Websocket-Protocol": {"v5.channel.k8s.io"},
				"Impersonate-User":       {user},
				"Impersonate-Extra-Controllerkit.github.io%2fleader-Term": {"uid/0"},
			},
		},
		{
			name: "impersonates already", user: user, method: http.MethodPut,
			header: http.Header{"Impersonate-User": {user}},
			err:    "header Impersonate-User already",
		},
		{
			name: "impersonates in lower case", user: user, method: http.MethodPut,
			header: http.Header{"impersonate-group": {"system:masters"}},
			err:    "header impersonate-group already",
		},
		{name: "no user", method: http.MethodPut, header: http.Header{}, err: "the user of GuardAs is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				whileLeading(t, func(ctx context.Context) {
					next := &answers{}
					req, err := http.NewRequestWithContext(ctx, tt.method, "http://server/", strings.NewReader("{}"))
					if err != nil {
						t.Fatal(err)
					}
					req.Header = tt.header.Clone()
					res, err := leader.GuardAs(tt.user, tt.groups...)(next).RoundTrip(req)
					if diff := cmp.Diff(tt.header, req.Header); diff != "" {
						t.Errorf("the caller's header changed (-before +after):\n%s", diff)
					}
					if tt.err != "" {
						if err == nil || !strings.Contains(err.Error(), tt.err) || next.count() != 0 {
							t.Errorf("RoundTrip() = %v, %v, %d sent, want an error that says %q and none sent", res, err, next.count(), tt.err)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(tt.want, next.sent[0].Header); diff != "" {
						t.Errorf("header (-want +sent):\n%s", diff)
					}
				})
			})
		})
	}
}

// TestGuardAsImpersonatingConfig: GuardAs does not override Impersonate.
func TestGuardAsImpersonatingConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &answers{}
		client := guardedClient(t, next, func(c *rest.Config) {
			c.Wrap(leader.GuardAs("system:serviceaccount:shop:shop-controller"))
			c.Impersonate.UserName = "jane"
		})
		whileLeading(t, func(ctx context.Context) {
			err := client.CoreV1().ConfigMaps("shop").Delete(ctx, "a", metav1.DeleteOptions{})
			if err == nil || !strings.Contains(err.Error(), "remove Impersonate from the configuration") || next.count() != 0 {
				t.Errorf("Delete() = %v, %d sent, want an error that names Impersonate and none sent", err, next.count())
			}
		})
	})
}

// TestGuardIsFoundBelow: client-go looks for the transport below a wrapper.
func TestGuardIsFoundBelow(t *testing.T) {
	next := &answers{}
	for name, rt := range map[string]http.RoundTripper{"Guard": leader.Guard(next), "GuardAs": leader.GuardAs("jane")(next)} {
		w, ok := rt.(utilnet.RoundTripperWrapper)
		if !ok || w.WrappedRoundTripper() != http.RoundTripper(next) {
			t.Errorf("%s: WrappedRoundTripper() is not the transport that it was given", name)
		}
	}
}

// silent returns a response without an allocation.
type silent struct{ res *http.Response }

func (s silent) RoundTrip(*http.Request) (*http.Response, error) { return s.res, nil }

// TestGuardDoesNotAllocate: a guarded write or read allocates no memory.
func TestGuardDoesNotAllocate(t *testing.T) {
	whileLeading(t, func(ctx context.Context) {
		guard := leader.Guard(silent{res: &http.Response{}})
		for _, method := range []string{http.MethodPut, http.MethodGet} {
			req, err := http.NewRequestWithContext(ctx, method, "http://server/", nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := testing.AllocsPerRun(100, func() {
				if _, err := guard.RoundTrip(req); err != nil {
					t.Error(err)
				}
			}); got != 0 {
				t.Errorf("%s: %v allocations, want 0", method, got)
			}
		}
	})
}

// TestElectorIsGuarded: an Elector with a guarded client can read the Lease and
// never write it. Run returns an error instead of waiting.
func TestElectorIsGuarded(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		guarded := leader.Guard(transportFunc(func(*http.Request) (*http.Response, error) {
			t.Error("a write was sent")
			return nil, errors.New("sent")
		}))
		c.BeforeSend = func(ctx context.Context, verb string) error {
			if verb != "create" && verb != "update" {
				return nil
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api/leases", nil)
			if err != nil {
				return err
			}
			_, err = (&http.Client{Transport: guarded}).Do(request)
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := e.Run(ctx, untilDone)
		if err == nil || !contains(err.Error(), "StartTimeout", "ns/controller", "a client without Guard for the Elector") {
			t.Errorf("Run() = %v, want an error that names the cure", err)
		}
	})
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
