package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
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
	ctx      context.Context // done when the stream is closed
	close    context.CancelFunc
	end      func()      // ends a Read of the body
	timer    *time.Timer // ends a stream without its bookmark

	// Used by Read only.
	buffer  [16 << 10]byte
	pending []byte // read from body, and not delivered
	within  bool   // the delivered bytes end within a line
	filter  bool   // hold back the bookmark that ends the initial list
	tail    []byte // delivered at the end

	over ending // guarded by i.mu
}

type ending int

const (
	open ending = iota
	wasCut
	gone
)

func newStream(i *Incarnation, resource string, ctx context.Context, end func(), r *http.Response, noBookmark time.Duration) *stream {
	s := &stream{i: i, resource: resource, body: r.Body, end: end, tail: expiredEvent()}
	s.ctx, s.close = context.WithCancel(ctx)
	s.lines = strings.HasPrefix(r.Header.Get("Content-Type"), runtime.ContentTypeJSON)
	s.filter = s.lines && noBookmark > 0
	i.change(func() {
		i.streams[s] = true
		if noBookmark > 0 {
			s.timer = time.AfterFunc(noBookmark, func() { i.change(func() { s.cutLocked(false) }) })
		}
	})
	return s
}

func (s *stream) cutLocked(expired bool) {
	if s.over != open {
		return
	}
	s.over = wasCut
	if expired && s.lines {
		s.over = gone
	}
	s.end()
}

func (s *stream) ending() ending {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	return s.over
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
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
		if err := s.i.passable(s.ctx, s); err != nil {
			return 0, err
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
			return 0, err
		}
	}
}

// readTail delivers the rest of a started line, and then the last event.
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
		if !endsInitialList(line) {
			kept = append(kept, line...)
		}
	}
	return kept, err
}

func endsInitialList(line []byte) bool {
	if !bytes.Contains(line, []byte(metav1.InitialEventsAnnotationKey)) {
		return false
	}
	var event struct {
		Type   string
		Object struct {
			Metadata struct{ Annotations map[string]string }
		}
	}
	return json.Unmarshal(line, &event) == nil && event.Type == string(watch.Bookmark) &&
		event.Object.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true"
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.i.change(func() { delete(s.i.streams, s) })
	if s.timer != nil {
		s.timer.Stop()
	}
	s.close()
	s.end()
	return s.body.Close()
}

// expiredEvent returns the event with which the API server ends a watch whose version it
// does not keep.
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
