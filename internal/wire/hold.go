package wire

import (
	"io"
	"net/http"
	"slices"
	"sync"
)

// maxHeld bounds the part of a response that is held. The API server rejects requests
// over 3 MiB and etcd, by default, objects over 1.5 MiB.
const maxHeld = 8 << 20

// hold reads the response's body, up to maxHeld, and replaces it by a body with the same
// bytes and the same error. It reports whether it read the whole body. The returned bytes
// are valid until the new body is closed. Then the next response reuses the memory,
// which is most of the garbage of a write.
func (r *Reader) hold(resp *http.Response) (body []byte, complete bool) {
	size := 4 << 10
	if n := resp.ContentLength; n > 0 && n <= maxHeld {
		size = int(n) + 1 // the extra byte finds the end without growing
	}
	h := &held{body: resp.Body, buffers: &r.buffers}
	if h.buffer, _ = r.buffers.Get().(*[]byte); h.buffer == nil {
		h.buffer = new([]byte)
	}
	h.data = slices.Grow((*h.buffer)[:0], size)
	for h.err == nil && len(h.data) <= maxHeld {
		if len(h.data) == cap(h.data) {
			h.data = slices.Grow(h.data, len(h.data))
		}
		var n int
		n, h.err = resp.Body.Read(h.data[len(h.data):min(cap(h.data), maxHeld+1)])
		h.data = h.data[:len(h.data)+n]
	}
	*h.buffer = h.data
	resp.Body = h
	return h.data, h.err == io.EOF //nolint:errorlint // a Reader returns io.EOF itself
}

// held is a body whose beginning was read before.
type held struct {
	body    io.ReadCloser // yields the bytes that follow data
	buffers *sync.Pool    // of *[]byte

	mu     sync.Mutex // guards the fields below: a body can be closed while it is read
	buffer *[]byte    // returns to buffers on Close; nil after that
	data   []byte     // the bytes that the caller reads next
	err    error      // follows data; nil if body goes on
}

// Read implements io.Reader.
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

// Close implements io.Closer. The rest of the body is unreadable after it.
func (h *held) Close() error {
	h.mu.Lock()
	if h.buffer != nil { // a second Close must not return it again
		h.buffers.Put(h.buffer)
	}
	h.buffer, h.data, h.err = nil, nil, nil
	h.mu.Unlock()
	return h.body.Close()
}
