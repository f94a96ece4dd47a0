package consistency

import (
	"io"
	"net/http"
	"slices"
	"sync"
)

// maxAnswer bounds what is held of an answer. The API server refuses requests over
// 3 MiB and etcd, by default, objects over 1.5 MiB.
const maxAnswer = 8 << 20

// hold reads the answer's body, up to maxAnswer, and puts a body in its place that
// yields the same bytes and the same error. It reports whether this is all of it. What
// it returns is valid until that body is closed: then the next answer gets the memory,
// which is most of what a write costs.
func (t *transport) hold(resp *http.Response) (body []byte, complete bool) {
	size := 4 << 10
	if n := resp.ContentLength; n > 0 && n <= maxAnswer {
		size = int(n) + 1 // the byte that is not used spares growing it to see the end
	}
	h := &held{body: resp.Body, buffers: &t.buffers}
	if h.buffer, _ = t.buffers.Get().(*[]byte); h.buffer == nil {
		h.buffer = new([]byte)
	}
	h.data = slices.Grow((*h.buffer)[:0], size)
	for h.err == nil && len(h.data) <= maxAnswer {
		if len(h.data) == cap(h.data) {
			h.data = slices.Grow(h.data, len(h.data))
		}
		var n int
		n, h.err = resp.Body.Read(h.data[len(h.data):min(cap(h.data), maxAnswer+1)])
		h.data = h.data[:len(h.data)+n]
	}
	*h.buffer = h.data
	resp.Body = h
	return h.data, h.err == io.EOF //nolint:errorlint // a Reader returns io.EOF itself
}

// hold holds an answer in memory of its own.
func hold(resp *http.Response) (body []byte, complete bool) { return new(transport).hold(resp) }

// held is a body of which the beginning was read already.
type held struct {
	body    io.ReadCloser // yields what follows data
	buffers *sync.Pool

	mu     sync.Mutex // guards what follows: a body may be closed while it is read
	buffer *[]byte    // what goes back to buffers, nil when it has
	data   []byte     // what the caller reads next
	err    error      // what ends data, nil if body goes on
}

func (h *held) Read(p []byte) (int, error) {
	h.mu.Lock()
	n, err := copy(p, h.data), h.err
	h.data = h.data[n:]
	more := len(h.data) > 0
	h.mu.Unlock()
	switch {
	case n > 0 || more:
		return n, nil
	case err != nil:
		return 0, err
	}
	return h.body.Read(p)
}

// Close also makes what is left unreadable, as that of any body.
func (h *held) Close() error {
	h.mu.Lock()
	if h.buffer != nil { // not twice: somebody else may have it by now
		h.buffers.Put(h.buffer)
	}
	h.buffer, h.data, h.err = nil, nil, nil
	h.mu.Unlock()
	return h.body.Close()
}
