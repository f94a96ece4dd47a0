package controllertest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
)

// onlyMine returns a transport that leaves out of watches the events that are not
// wanted. Explorations side by side on one server each watch all of it,
// and decoding the events of all others was most of what they did: with a dozen of
// them the observers came to be seconds late. Such events are told apart here before
// they are decoded. What is no event of an object passes, and so does any other
// answer.
func onlyMine(wants func(event []byte) bool) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return mineTransport{next: next, wants: wants}
	}
}

type mineTransport struct {
	next  http.RoundTripper
	wants func(event []byte) bool
}

func (t mineTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t mineTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusOK && req.URL.Query().Get("watch") != "" {
		resp.Body = &mineBody{Closer: resp.Body, lines: bufio.NewReaderSize(resp.Body, 64<<10), wants: t.wants}
	}
	return resp, err
}

// mineBody is a watch in JSON: an event a line.
type mineBody struct {
	io.Closer
	lines *bufio.Reader
	wants func(event []byte) bool
	line  []byte // what is left of the present one
	long  []byte // holds a line that is longer than the reader's buffer
	err   error
}

func (b *mineBody) Read(p []byte) (int, error) {
	for len(b.line) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.long = b.long[:0]
		for {
			part, err := b.lines.ReadSlice('\n')
			if errors.Is(err, bufio.ErrBufferFull) {
				b.long = append(b.long, part...)
				continue
			}
			b.err = err
			if b.line = part; len(b.long) > 0 {
				b.long = append(b.long, part...)
				b.line = b.long
			}
			break
		}
		if ofObject(b.line) && !b.wants(b.line) {
			b.line = nil
		}
	}
	n := copy(p, b.line)
	b.line = b.line[n:]
	return n, nil
}

// ofObject reports whether a line is an event of an object, as the API server writes
// them. One that it cannot tell is none, and passes.
func ofObject(line []byte) bool {
	for _, kind := range []string{"ADDED", "MODIFIED", "DELETED"} {
		if bytes.HasPrefix(line, []byte(`{"type":"`+kind+`"`)) {
			return true
		}
	}
	return false
}
