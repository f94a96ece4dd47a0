package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// TestFault is every field of Fault on its own: what the caller sees, and
// whether the server has the request.
//
// Proves N2.
func TestFault(t *testing.T) {
	const while = 50 * time.Millisecond
	teapot := &fault.Response{Code: http.StatusTeapot, Reason: "Teapot", Message: "no coffee"}
	tests := []struct {
		name    string
		fault   func(s *story) fault.Fault
		want    []string // what happened, in order
		status  int
		body    string
		sendErr error // of the request
		readErr error // of reading the answer
		atLeast time.Duration
	}{
		{
			name:  "nothing",
			fault: func(*story) fault.Fault { return fault.Fault{} },
			want:  []string{"on", "server", "done 201", "caller"}, status: 201, body: createdBody,
		}, {
			name:  "Before",
			fault: func(s *story) fault.Fault { return fault.Fault{Before: func() { s.add("before") }} },
			want:  []string{"on", "before", "server", "done 201", "caller"}, status: 201, body: createdBody,
		}, {
			name: "Delay",
			fault: func(s *story) fault.Fault {
				return fault.Fault{Before: func() { s.add("before") }, Delay: while}
			},
			want: []string{"on", "before", "server", "done 201", "caller"}, status: 201, body: createdBody, atLeast: while,
		}, {
			name:  "Drop",
			fault: func(*story) fault.Fault { return fault.Fault{Drop: true} },
			want:  []string{"on", "caller"}, sendErr: syscall.ECONNRESET,
		}, {
			name:  "Rewrite",
			fault: func(*story) fault.Fault { return fault.Fault{Rewrite: fault.SetQuery("fieldManager", "x")} },
			want:  []string{"on", "server fieldManager=x", "done 201", "caller"}, status: 201, body: createdBody,
		}, {
			name:  "Answer",
			fault: func(*story) fault.Fault { return fault.Fault{Response: teapot} },
			want:  []string{"on", "caller"}, status: 418,
			body: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no coffee","reason":"Teapot","code":418}`,
		}, {
			name:  "Answer and Commit",
			fault: func(*story) fault.Fault { return fault.Fault{Response: teapot, Commit: true} },
			want:  []string{"on", "server", "done 201", "caller"}, status: 418,
			body: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no coffee","reason":"Teapot","code":418}`,
		}, {
			name:  "After",
			fault: func(s *story) fault.Fault { return fault.Fault{After: func() { s.add("after") }} },
			want:  []string{"on", "server", "done 201", "after", "caller"}, status: 201, body: createdBody,
		}, {
			name: "Hold",
			fault: func(s *story) fault.Fault {
				return fault.Fault{After: func() { s.add("after") }, Hold: while}
			},
			want: []string{"on", "server", "done 201", "after", "caller"}, status: 201, body: createdBody, atLeast: while,
		}, {
			name:  "Lose",
			fault: func(*story) fault.Fault { return fault.Fault{Lose: true} },
			want:  []string{"on", "server", "done 201", "caller"}, sendErr: syscall.ECONNRESET,
		}, {
			name:  "Drip",
			fault: func(*story) fault.Fault { return fault.Fault{SlowBody: while} },
			want:  []string{"on", "server", "done 201", "caller"}, status: 201, body: createdBody, atLeast: while,
		}, {
			name:  "Trunc",
			fault: func(*story) fault.Fault { return fault.Fault{Truncate: true} },
			want:  []string{"on", "server", "done 201", "caller"}, status: 201, body: createdBody[:len(createdBody)/2], readErr: io.ErrUnexpectedEOF,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := new(story)
			cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.ProtoMajor != 2 || r.Header.Get("Authorization") != "Bearer "+canary {
					t.Errorf("the server got %s with %q", r.Proto, r.Header.Get("Authorization"))
				}
				s.add(strings.TrimSpace("server " + r.URL.RawQuery))
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, createdBody)
			})
			i := incarnate(t, cfg, func(*fault.Op) fault.Fault {
				s.add("on")
				return test.fault(s)
			}, func(_ *fault.Op, status int, body []byte) {
				s.add(fmt.Sprint("done ", status))
				if string(body) != createdBody {
					t.Errorf("done got %q", body)
				}
			})
			began := time.Now()
			r := request(t, i, http.MethodPost, configMaps, `{"metadata":{"name":"made"}}`)
			sent := r.URL.String()
			response, err := client(t, i).Do(r)
			safe(t, err)
			if !errors.Is(err, test.sendErr) {
				t.Fatalf("the caller got the error %v, want %v", err, test.sendErr)
			}
			if err == nil {
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				safe(t, err)
				if !errors.Is(err, test.readErr) {
					t.Errorf("the caller read with the error %v, want %v", err, test.readErr)
				}
				if response.StatusCode != test.status || string(body) != test.body {
					t.Errorf("the caller got %d %q, want %d %q", response.StatusCode, body, test.status, test.body)
				}
			}
			if took := time.Since(began); took < test.atLeast {
				t.Errorf("it took %v, want %v", took, test.atLeast)
			}
			if r.URL.String() != sent {
				t.Errorf("the caller's request is now to %s", r.URL)
			}
			s.add("caller")
			s.want(t, test.want...)
		})
	}
}

// TestRoundTripper holds that the caller's request stays as it is, as the
// interface demands.
func TestRoundTripper(t *testing.T) {
	t.Parallel()
	i := incarnate(t, serve(t, func(http.ResponseWriter, *http.Request) {}), always(fault.Fault{Rewrite: fault.SetQuery("a", "b")}), nil)
	r := request(t, i, http.MethodPut, configMaps+"/a?c=d", "body")
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
	was := r.Clone(r.Context())
	response, err := i.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if r.URL.String() != was.URL.String() || !cmp.Equal(r.Header, was.Header) {
		t.Errorf("the request is now %s %v, and was %s %v", r.URL, r.Header, was.URL, was.Header)
	}
}

// TestFaultOfWatch is what happens to the answer of a watch: it is established,
// or not.
func TestFaultOfWatch(t *testing.T) {
	tests := []struct {
		name    string
		fault   fault.Fault
		reached bool
		err     error
		status  int
	}{
		{name: "nothing", reached: true, status: 200},
		{name: "Drop", fault: fault.Fault{Drop: true}, err: syscall.ECONNRESET},
		{name: "Lose", fault: fault.Fault{Lose: true}, reached: true, err: syscall.ECONNRESET},
		{name: "Answer", fault: fault.Fault{Response: &fault.Response{Code: 410}}, status: 410},
		{name: "Answer and Commit", fault: fault.Fault{Response: &fault.Response{Code: 503}, Commit: true}, reached: true, status: 503},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var reached atomic.Bool
			ended := make(chan struct{})
			cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				defer close(ended)
				reached.Store(true)
				w.Header().Set("Content-Type", "application/json")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			})
			i := incarnate(t, cfg, always(test.fault), nil)
			response, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps+"?watch=true", ""))
			safe(t, err)
			if !errors.Is(err, test.err) {
				t.Fatalf("the caller got the error %v, want %v", err, test.err)
			}
			if err == nil {
				if response.StatusCode != test.status {
					t.Errorf("the caller got %d, want %d", response.StatusCode, test.status)
				}
				_ = response.Body.Close()
			}
			if n := i.Watches()["configmaps"]; n != 0 {
				t.Errorf("%d watches are established, although the caller has none", n)
			}
			if reached.Load() != test.reached {
				t.Errorf("the server got the request: %t", reached.Load())
			}
			if test.reached {
				<-ended // the server's side goes with the caller's
			}
		})
	}
}

// TestResponse holds that client-go understands the answers as those of a server.
func TestResponse(t *testing.T) {
	tests := []struct {
		answer fault.Response
		is     func(error) bool
		delay  int
	}{
		{fault.Response{Code: 409, Reason: metav1.StatusReasonConflict}, apierrors.IsConflict, 0},
		{fault.Response{Code: 403, Reason: metav1.StatusReasonForbidden}, apierrors.IsForbidden, 0},
		{fault.Response{Code: 422, Reason: metav1.StatusReasonInvalid}, apierrors.IsInvalid, 0},
		{fault.Response{Code: 429, Reason: metav1.StatusReasonTooManyRequests, RetryAfter: 7}, apierrors.IsTooManyRequests, 7},
		{fault.Response{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, RetryAfter: 3}, apierrors.IsServiceUnavailable, 3},
		{fault.Response{Code: 500, Reason: metav1.StatusReasonInternalError}, apierrors.IsInternalError, 0},
		{fault.Response{Code: 504, Reason: metav1.StatusReasonTimeout}, apierrors.IsTimeout, 0},
		{fault.Response{Code: 410, Reason: metav1.StatusReasonExpired}, apierrors.IsResourceExpired, 0},
		{fault.Response{Code: 404, Reason: metav1.StatusReasonNotFound}, apierrors.IsNotFound, 0},
	}
	cfg := serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the server got %s", r.URL) })
	for _, test := range tests {
		t.Run(fmt.Sprint(test.answer.Code), func(t *testing.T) {
			t.Parallel()
			test.answer.Message = "as the plan says"
			i := incarnate(t, cfg, always(fault.Fault{Response: &test.answer}), nil)
			err := clientset(t, i).CoreV1().RESTClient().Put().Resource("configmaps").Namespace("ns").Name("a").
				Body(&corev1.ConfigMap{}).MaxRetries(0).Do(t.Context()).Error()
			safe(t, err)
			if !test.is(err) || !strings.Contains(err.Error(), "as the plan says") {
				t.Errorf("client-go reads %#v", err)
			}
			if delay, ok := apierrors.SuggestsClientDelay(err); delay != test.delay || ok != (test.delay > 0) {
				t.Errorf("client-go reads a delay of %d (%t), want %d", delay, ok, test.delay)
			}
			response, err2 := client(t, i).Do(request(t, i, http.MethodGet, configMaps, ""))
			if err2 != nil {
				t.Fatal(err2)
			}
			_ = response.Body.Close()
			if got, want := response.Header.Get("Retry-After"), strings.Trim(fmt.Sprint(test.delay), "0"); got != want {
				t.Errorf("the header Retry-After is %q, want %q", got, want)
			}
			if status := apierrors.APIStatus(nil); !errors.As(err, &status) || int(status.Status().Code) != test.answer.Code {
				t.Errorf("client-go reads %#v", err)
			}
		})
	}
}

// TestRetriesOfTheClient holds that a reset connection is one that client-go
// knows: a read is repeated by itself, and a write is not.
func TestRetriesOfTheClient(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	cfg := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, createdBody)
	})
	var asked atomic.Int32
	i := incarnate(t, cfg, func(op *fault.Op) fault.Fault {
		switch {
		case op.Verb == "create":
			return fault.Fault{Lose: true}
		case asked.Add(1) == 1:
			return fault.Fault{Drop: true}
		}
		return fault.Fault{}
	}, nil)
	c := clientset(t, i).CoreV1().ConfigMaps("ns")
	if _, err := c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the create whose answer was lost: %v", err)
	}
	if n := served.Load(); n != 1 {
		t.Errorf("the server got the create %d times", n)
	}
	if _, err := c.Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Errorf("the get that was dropped once: %v", err)
	}
	if got, want := [2]int32{asked.Load(), served.Load()}, [2]int32{2, 2}; got != want {
		t.Errorf("gets tried and requests served: %v, want %v", got, want)
	}
}

// TestCall is every field of Fault that applies to a call.
func TestCall(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	const while = 30 * time.Millisecond
	tests := []struct {
		name    string
		fault   fault.Fault
		made    bool
		err     error
		atLeast time.Duration
	}{
		{"nothing", fault.Fault{}, true, failed, 0},
		{"Delay", fault.Fault{Delay: while}, true, failed, while},
		{"Drop", fault.Fault{Drop: true}, false, syscall.ECONNRESET, 0},
		{"Hold", fault.Fault{Hold: while}, true, failed, while},
		{"Lose", fault.Fault{Lose: true}, true, syscall.ECONNRESET, 0},
	}
	cfg := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, test := range tests {
		i := incarnate(t, cfg, nil, nil)
		var order []string
		test.fault.Before = func() { order = append(order, "before") }
		test.fault.After = func() { order = append(order, "after") }
		began := time.Now()
		err := test.fault.Call(t.Context(), i, func(context.Context) error {
			order = append(order, "call")
			return failed
		})
		if !errors.Is(err, test.err) {
			t.Errorf("%s: the error is %v, want %v", test.name, err, test.err)
		}
		want := []string{"before"}
		if test.made {
			want = []string{"before", "call", "after"}
		}
		if !slices.Equal(order, want) {
			t.Errorf("%s: %v, want %v", test.name, order, want)
		}
		if took := time.Since(began); took < test.atLeast {
			t.Errorf("%s: took %v", test.name, took)
		}
	}
	t.Run("killed after it", func(t *testing.T) {
		i := incarnate(t, cfg, nil, nil)
		made := false
		err := fault.Fault{After: i.Kill}.Call(t.Context(), i, func(context.Context) error { made = true; return nil })
		if !made || !errors.Is(err, fault.ErrKilled) {
			t.Errorf("made %t, error %v", made, err)
		}
	})
	t.Run("killed before it", func(t *testing.T) {
		i := incarnate(t, cfg, nil, nil)
		err := fault.Fault{Before: i.Kill}.Call(t.Context(), i, func(context.Context) error { t.Error("made"); return nil })
		if !errors.Is(err, fault.ErrKilled) {
			t.Error(err)
		}
	})
}
