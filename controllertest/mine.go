package controllertest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
)

// onlyMine returns a transport that removes unwanted events from watches before they are
// decoded. Parallel explorations on one server watch each other's objects, and decoding
// their events made the observers seconds late. Lines other than events of objects, and
// responses other than watches, are unchanged.
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
	line  []byte // the rest of the present line
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

// ofObject reports whether a line is an event of an object in the form of the API server.
// Lines of another form are not removed.
func ofObject(line []byte) bool {
	for _, kind := range []string{"ADDED", "MODIFIED", "DELETED"} {
		if bytes.HasPrefix(line, []byte(`{"type":"`+kind+`"`)) {
			return true
		}
	}
	return false
}
