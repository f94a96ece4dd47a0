package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// A stream is the body of a watch. JSON events are lines, so that it can end
// between two of them.
type stream struct {
	i        *Incarnation
	resource string
	body     io.ReadCloser
	lines    bool
	ctx      context.Context
	cancel   context.CancelFunc
	stop     func() bool
	timer    *time.Timer // ends a stream without its bookmark

	buffer  [16 << 10]byte
	pending []byte // read from body, and not delivered
	within  bool   // what was delivered ends within a line
	filter  bool   // hold back the bookmark that ends the initial list

	mu   sync.Mutex
	over ending
	tail []byte // delivered at the end
}

type ending int

const (
	open ending = iota
	wasCut
	gone
)

func newStream(i *Incarnation, resource string, ctx context.Context, cancel context.CancelFunc, stop func() bool, r *http.Response) *stream {
	s := &stream{i: i, resource: resource, body: r.Body, ctx: ctx, cancel: cancel, stop: stop}
	s.lines = strings.HasPrefix(r.Header.Get("Content-Type"), runtime.ContentTypeJSON)
	i.mu.Lock()
	i.streams[s] = true
	i.mu.Unlock()
	return s
}

func (s *stream) withoutBookmark(d time.Duration) {
	s.filter = s.lines
	s.timer = time.AfterFunc(d, func() { s.cut(false) })
}

func (s *stream) cut(expired bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != open {
		return
	}
	s.over = wasCut
	if expired && s.lines {
		s.over, s.tail = gone, expiredEvent()
	}
	s.cancel() // ends a Read of the body, and a wait
}

func (s *stream) ending() ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	for {
		var err error
		if len(s.pending) == 0 {
			var n int
			n, err = s.body.Read(s.buffer[:])
			s.pending = s.buffer[:n]
			if s.filter {
				s.pending, err = s.withoutEnd(s.pending, err)
			}
		}
		if e := s.i.passable(s.ctx, true, s.resource); e != nil {
			if errors.Is(e, ErrKilled) {
				return 0, e
			}
			err = e
		}
		switch s.ending() {
		case wasCut:
			return 0, io.ErrUnexpectedEOF
		case gone:
			return s.readTail(p)
		case open:
		}
		if len(s.pending) > 0 {
			n := copy(p, s.pending)
			s.pending = s.pending[n:]
			s.within = p[n-1] != '\n'
			return n, nil
		}
		if err != nil {
			if s.i.life.Err() != nil {
				err = ErrKilled
			}
			return 0, err
		}
	}
}

// readTail delivers the rest of a line that was begun, and then the last event.
// If the rest of the line was not received, the stream breaks off within it.
func (s *stream) readTail(p []byte) (int, error) {
	if s.within {
		end := bytes.IndexByte(s.pending, '\n')
		if end < 0 {
			return 0, io.ErrUnexpectedEOF
		}
		n := copy(p, s.pending[:end+1])
		s.pending = s.pending[n:]
		s.within = n <= end
		return n, nil
	}
	if len(s.tail) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.tail)
	s.tail = s.tail[n:]
	return n, nil
}

// withoutEnd reads whole lines and drops the bookmark that ends the initial list.
func (s *stream) withoutEnd(first []byte, err error) ([]byte, error) {
	all := bytes.Clone(first)
	for err == nil && !bytes.HasSuffix(all, []byte("\n")) {
		var n int
		n, err = s.body.Read(s.buffer[:])
		all = append(all, s.buffer[:n]...)
	}
	var kept []byte
	for line := range bytes.Lines(all) {
		if !bytes.Contains(line, []byte(metav1.InitialEventsAnnotationKey)) {
			kept = append(kept, line...)
		}
	}
	return kept, err
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.i.mu.Lock()
	delete(s.i.streams, s)
	s.i.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.stop()
	s.cancel()
	return s.body.Close()
}

// expiredEvent is what the API server sends when the version that a watch stands
// at is no longer kept.
func expiredEvent() []byte {
	status, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired,
		Message: "too old resource version",
	})
	if err == nil {
		status, err = json.Marshal(metav1.WatchEvent{Type: string(watch.Error), Object: runtime.RawExtension{Raw: status}})
	}
	if err != nil {
		panic(err) // they are structs of strings and numbers
	}
	return append(status, '\n')
}
