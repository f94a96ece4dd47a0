package consistency_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// Answers share memory, one after the other. What is still read is not overwritten, by
// whatever order of reading and closing.
//
// Proves C3.
func TestWrapKeepsAnswersApart(t *testing.T) {
	s := tracked()
	answer := func(n int) string {
		return fmt.Sprintf(`{"metadata":{"resourceVersion":"%d","annotations":{"a":"%s"}}}`, 1+n, strings.Repeat(fmt.Sprint(n%10), 100+n%7*1000))
	}
	rt := s.Wrap(roundTripper(func(req *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: 200, Header: http.Header{"Content-Type": {jsonType}}, ContentLength: -1,
			Body: &strictBody{rest: strings.NewReader(req.Header.Get("Answer"))},
		}, nil
	}))
	write := func(n int) io.ReadCloser {
		req, err := http.NewRequestWithContext(s.Begin(t.Context(), owner), "PUT", "https://server/api/v1/namespaces/ns/pods/n", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Answer", answer(n))
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Body
	}
	check := func(body io.Reader, read []byte, n int) {
		t.Helper()
		rest, err := io.ReadAll(body)
		if got := string(read) + string(rest); err != nil || got != answer(n) {
			t.Errorf("read %.200q, %v, want %.200q", got, err, answer(n))
		}
	}

	first := write(1)
	half := make([]byte, 50)
	if _, err := io.ReadFull(first, half); err != nil {
		t.Fatal(err)
	}
	second := write(2)
	check(first, half, 1) // while the second is held
	first.Close()
	third := write(3) // may have the memory of the first
	first.Close()     // once more: must not give away that of the third
	fourth := write(4)
	if n, err := first.Read(half); n > 0 || err != errClosed {
		t.Errorf("Read after Close = %d, %v, want %v as without Wrap", n, err, errClosed)
	}
	check(third, nil, 3)
	check(fourth, nil, 4)
	check(second, nil, 2)

	// Many at once; every other body is closed by somebody else while it is read.
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 200 {
				n := worker*1000 + i
				body := write(n)
				if i%2 == 0 {
					check(body, nil, n)
					body.Close()
					continue
				}
				var closing sync.WaitGroup
				closing.Go(func() { body.Close() })
				got, err := io.ReadAll(body)
				closing.Wait()
				if want := answer(n); !strings.HasPrefix(want, string(got)) || err == nil && len(got) < len(want) {
					t.Errorf("read %.200q, %v of a body that is being closed, want the beginning of %.200q", got, err, want)
				}
			}
		})
	}
	wg.Wait()
}

// A body that is longer than what is held can be closed while it is read.
func TestWrapClosesWhatIsRead(t *testing.T) {
	s := tracked()
	source, sink := io.Pipe()
	rt := s.Wrap(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {jsonType}}, ContentLength: -1, Body: source}, nil
	}))
	const held = 8<<20 + 1
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _, _ = sink.Write(bytes.Repeat([]byte(" "), held)) })
	req, err := http.NewRequestWithContext(s.Begin(t.Context(), owner), "PUT", "https://server/api/v1/namespaces/ns/pods/n", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	wg.Go(func() {
		_, _ = io.CopyN(io.Discard, resp.Body, held)
		read <- nil
		_, err := resp.Body.Read(make([]byte, 1)) // waits for the server
		read <- err
	})
	<-read
	resp.Body.Close()
	if err := <-read; err == nil {
		t.Error("Read returned no error, though the body was closed")
	}
}

var errClosed = fmt.Errorf("closed")

// strictBody is a body that cannot be read after it was closed.
type strictBody struct {
	mu     sync.Mutex
	rest   io.Reader
	closed bool
}

func (b *strictBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, errClosed
	}
	return b.rest.Read(p)
}

func (b *strictBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}
