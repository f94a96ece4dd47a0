package elections

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// A wire carries the requests of a life to its incarnation.
type wire struct {
	run  *run
	life *process
	base http.RoundTripper // the incarnation: ends with the process

	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

// fate decides about a request that is sent now.
func (w *wire) fate() (kind weather, delay time.Duration, until time.Time, strange bool) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	strange = w.rng.Float64() < w.run.script.stranger && now.Before(w.run.at(w.run.script.horizon))
	for _, s := range w.run.script.weather[w.life.replica] {
		if now.Before(w.run.at(s.from)) || !now.Before(w.run.at(s.to)) || s.kind >= frozen || w.rng.Float64() >= s.share {
			continue
		}
		least := cmp.Or(s.least, s.delay/3)
		return s.kind, least + time.Duration(w.rng.Int64N(int64(s.delay-least)+1)), w.run.at(s.to), strange
	}
	return weathers, 0, time.Time{}, strange
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	write := r.Method == http.MethodPut || r.Method == http.MethodPost
	if write {
		w.life.sends(body)
	}
	again := func(ctx context.Context) *http.Request {
		r := r.Clone(ctx)
		if body != nil {
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		return r
	}
	kind, delay, until, strange := w.fate()
	if strange && write {
		w.run.intrude()
	}
	if r.URL.Query().Has("watch") {
		switch kind { // a watch that is established late or lost is one more reason to read
		case silence:
			sleep(ctx, until)
			return nil, reset()
		case refused:
			return nil, reset()
		}
		return w.base.RoundTrip(again(ctx))
	}
	switch kind {
	case slow:
		if !sleep(ctx, time.Now().Add(delay)) {
			return nil, ctx.Err()
		}
	case late:
		// From here on the network owns the request, even if its sender is gone.
		return w.detached(ctx, delay, 0, again, w.run.world.late)
	case lateResponse:
		return w.detached(ctx, 0, delay, again, w.base)
	case lostResponse:
		response, err := w.base.RoundTrip(again(ctx))
		if err == nil {
			_ = response.Body.Close()
			err = reset()
		}
		return nil, err
	case silence:
		sleep(ctx, until)
		return nil, reset()
	case refused:
		return nil, reset()
	case twice:
		w.run.packets.run(func() {
			if sleep(w.run.ctx, time.Now().Add(delay)) {
				_, _ = send(w.run.world.late, again(w.run.ctx)) //nolint:bodyclose // send has closed it
			}
		})
	}
	return w.base.RoundTrip(again(ctx))
}

// detached sends a request that does not end with its sender.
func (w *wire) detached(ctx context.Context, before, after time.Duration, again func(context.Context) *http.Request, over http.RoundTripper) (*http.Response, error) {
	type outcome struct {
		response *http.Response
		err      error
	}
	got := make(chan outcome, 1)
	w.run.packets.run(func() {
		if !sleep(w.run.ctx, time.Now().Add(before)) {
			got <- outcome{nil, reset()}
			return
		}
		response, err := send(over, again(w.run.ctx)) //nolint:bodyclose // send has closed it
		if !sleep(w.run.ctx, time.Now().Add(after)) {
			err = reset()
		}
		got <- outcome{response, err}
	})
	select {
	case o := <-got:
		return o.response, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// send reads the whole response, so the body needs no close.
func send(over http.RoundTripper, r *http.Request) (*http.Response, error) {
	response, err := over.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// sleep waits until the given time and returns true, or false once ctx is done.
func sleep(ctx context.Context, until time.Time) bool {
	d := time.Until(until)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func reset() error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}

// releases reports whether the written record releases the Lease.
func releases(body []byte) bool {
	var lease struct {
		Spec struct{ HolderIdentity *string }
	}
	return json.Unmarshal(body, &lease) == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == ""
}
