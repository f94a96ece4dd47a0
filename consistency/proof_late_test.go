package consistency_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// lateWatches is a slow network: all that a watch receives is held back for a random
// time of at most most, or until what came before it is let go, as the order stays.
type lateWatches struct {
	next http.RoundTripper
	most time.Duration
}

func (l lateWatches) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err != nil || !req.URL.Query().Has("watch") {
		return resp, err
	}
	b := &lateBody{body: resp.Body, most: l.most, received: make(chan lateChunk, 1<<12)}
	b.ctx, b.cancel = context.WithCancel(req.Context())
	b.wg.Go(b.receive)
	resp.Body = b
	return resp, nil
}

func (l lateWatches) WrappedRoundTripper() http.RoundTripper { return l.next }

type lateBody struct {
	body     io.ReadCloser
	most     time.Duration
	received chan lateChunk
	ctx      context.Context // done when nobody reads any more
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	now lateChunk // of the reader: what is being read
}

type lateChunk struct {
	data []byte
	err  error
	due  time.Time
}

func (b *lateBody) receive() {
	buf := make([]byte, 32<<10)
	var due time.Time
	for {
		n, err := b.body.Read(buf)
		if at := time.Now().Add(rand.N(b.most)); at.After(due) {
			due = at
		}
		select {
		case b.received <- lateChunk{bytes.Clone(buf[:n]), err, due}:
		case <-b.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader.
func (b *lateBody) Read(p []byte) (int, error) {
	for len(b.now.data) == 0 {
		if b.now.err != nil {
			return 0, b.now.err
		}
		select {
		case b.now = <-b.received:
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
		stall := time.NewTimer(time.Until(b.now.due))
		select {
		case <-stall.C:
		case <-b.ctx.Done():
			stall.Stop()
			return 0, b.ctx.Err()
		}
	}
	n := copy(p, b.now.data)
	b.now.data = b.now.data[n:]
	return n, nil
}

// Close implements io.Closer.
func (b *lateBody) Close() error {
	b.cancel()
	err := b.body.Close()
	b.wg.Wait()
	return err
}
