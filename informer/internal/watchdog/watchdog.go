// Package watchdog is the transport of informer.EndSilentWatches: it ends watches that are
// silent, and repeats watches that the API server refuses or that do not reach it.
package watchdog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/internal/pause"
	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	firstPause    = 800 * time.Millisecond
	maxRetryAfter = 60      // seconds that a response 429 can ask for
	maxText       = 2 << 10 // bytes of a path or an error in a line of log

	// An API server whose watch cache is behind responds to a streamed list after 3s, with an error that
	// says so.
	minInitial = 10 * time.Second
)

// errSilent is the cause of the context of a watch that was silent. It is a timeout:
// client-go takes one for a watch that ended, and another error for a reason to list again.
var errSilent error = silentError{}

// errRelist is the cause of the context of a watch that ended for a list.
var errRelist = errors.New("informer: the watch was ended for a list")

type silentError struct{}

func (silentError) Error() string   { return "informer: the server did not respond to a watch in time" }
func (silentError) Timeout() bool   { return true }
func (silentError) Temporary() bool { return true } // for net.Error

// New returns a function that wraps transports, which end a watch if it brings no byte for the
// time silence. A response to one of them wakes the watches of all that did not reach the API
// server.
func New(silence time.Duration) func(next http.RoundTripper) http.RoundTripper {
	outage := &outage{}
	return func(next http.RoundTripper) http.RoundTripper { return &transport{next, silence, outage} }
}

type transport struct {
	next    http.RoundTripper
	silence time.Duration
	outage  *outage
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (w *transport) WrappedRoundTripper() http.RoundTripper { return w.next }

// RoundTrip implements http.RoundTripper. A watch that an informer sends, or that begins with a
// list, is sent again while it is refused or does not reach the server. client-go does that too,
// but its pauses end neither with the context nor with the outage, it writes a line for each
// attempt, and it lists again after most errors.
func (w *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	observed := alive.From(req.Context())
	if req.Method != http.MethodGet || req.URL == nil || !kube.IsWatch(req.URL) || !initial(req) && observed == nil {
		return w.send(req, observed)
	}
	unreachable := false
	backoff := wait.Backoff{Duration: firstPause, Factor: 2, Jitter: 1, Steps: 10, Cap: 30 * time.Second} // as client-go
	for {
		again := w.outage.wait() // before the request, so that no response is missed
		resp, err := w.send(req, observed)
		if !isRefused(resp, err) {
			if unreachable && err == nil && resp.StatusCode == http.StatusOK && !initial(req) && w.wentBack(req) {
				_ = resp.Body.Close()
				return expired(req), nil
			}
			return resp, err
		}
		unreachable = unreachable || err != nil
		after, shortest := backoff.Step(), time.Duration(0)
		if resp != nil {
			after = max(after, retryAfter(resp))
			shortest = after // a response to another request does not end an overload
			_ = resp.Body.Close()
		} else {
			shortest = min(after, firstPause+rand.N(firstPause)) // so that the replicas of all operators do not return at once
		}
		if !pause.For(req.Context(), shortest) || after > shortest && !pause.Until(req.Context(), after-shortest, again) {
			return nil, req.Context().Err()
		}
	}
}

// initial reports whether the watch begins with a list.
func initial(watch *http.Request) bool { return watch.URL.Query().Get("sendInitialEvents") == "true" }

// send sends a request once.
func (w *transport) send(req *http.Request, observed *alive.Informer) (*http.Response, error) {
	resp, err := w.observe(req, observed)
	if err == nil && resp != nil && resp.StatusCode < http.StatusInternalServerError {
		w.outage.end()
	}
	return resp, err
}

func (w *transport) observe(req *http.Request, observed *alive.Informer) (*http.Response, error) {
	if observed == nil {
		return w.roundTrip(req, nil)
	}
	kind := alive.List
	switch {
	case req.URL == nil || !kube.IsWatch(req.URL):
	case initial(req):
		kind = alive.InitialWatch
	default:
		kind = alive.Watch
	}
	end := observed.Begin(kind)
	resp, err := w.roundTrip(req, observed)
	note(req, kind, observed, resp, err)
	if err != nil || resp == nil || resp.StatusCode >= http.StatusBadRequest {
		end()
		return resp, err
	}
	resp.Body = observed.Body(resp.Body, kind, end)
	return resp, nil
}

func (w *transport) roundTrip(req *http.Request, observed *alive.Informer) (*http.Response, error) {
	if req.Method != http.MethodGet || req.URL == nil || !kube.IsWatch(req.URL) {
		return w.next.RoundTrip(req)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	if observed.Watch(initial(req), func() { cancel(errRelist) }) {
		cancel(nil)
		return expired(req), nil
	}
	if initial(req) && observed.Behind() {
		cancel(nil)
		klog.FromContext(ctx).Info("The API server's watch cache is behind, so the informer lists", "path", kube.Printable(req.URL.Path, maxText))
		return status(req, apierrors.NewInvalid(schema.GroupKind{}, "sendInitialEvents", nil)), nil
	}
	wait := w.silence
	if initial(req) {
		wait = max(wait, minInitial)
	}
	timer := time.AfterFunc(wait, func() { cancel(errSilent) })
	resp, err := w.next.RoundTrip(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		if w.ended(ctx, req.URL.Path, nil) {
			err = errSilent // for a list too: client-go sends the watch again, which then expires
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = &watched{transport: w, body: resp.Body, ctx: ctx, cancel: cancel, timer: timer, path: req.URL.Path, observed: observed}
	return resp, nil
}

// ended reports whether the transport ended the watch with the context ctx, and logs a silence.
// If the watch has brought no data, mute is its informer.
func (w *transport) ended(ctx context.Context, path string, mute *alive.Informer) bool {
	cause := context.Cause(ctx)
	if errors.Is(cause, errSilent) {
		text := "The server was silent and the watch was ended"
		if mute.Silent() {
			text = "The server was silent in two watches, and the informer lists again"
		}
		klog.FromContext(ctx).Info(text, "path", kube.Printable(path, maxText), "silence", w.silence)
		return true
	}
	return errors.Is(cause, errRelist)
}

// expired is the response to a watch from a resource version that is too old, after which
// client-go lists.
func expired(req *http.Request) *http.Response {
	return status(req, apierrors.NewResourceExpired("the informer was told to list again"))
}

// status is a response with an error. After any error of a watch that begins with a list, except 429,
// 410 and one of the connection, client-go lists.
func status(req *http.Request, err *apierrors.StatusError) *http.Response {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	body, _ := json.Marshal(status) // cannot fail
	code := int(status.Code)
	return &http.Response{
		Status: strconv.Itoa(code) + " " + http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)), Request: req,
	}
}

// watched is the body of a watch. The time runs only during Read: a consumer that is slow is
// no silence of the server.
type watched struct {
	*transport
	body   io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // cancels ctx
	path   string

	observed *alive.Informer // nil after data, or at the end
}

// Read reads from the body. If the transport ended the watch it returns io.EOF, as for a watch
// that the server ended.
func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.silence)
	n, err := w.body.Read(p)
	w.timer.Stop()
	if n > 0 {
		w.observed.Heard()
		w.observed = nil
	}
	if err != nil && err != io.EOF && w.ended(w.ctx, w.path, w.observed) {
		err = io.EOF
		w.observed = nil
	}
	return n, err
}

// Close closes the body. It may be called during Read.
func (w *watched) Close() error {
	w.cancel(nil)
	return w.body.Close()
}
