package alive

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

// Bytes are no sign of life: one object that the Go type rejects makes a list fail after all of
// them were received, again and again. So the data of a list counts when it is decoded. client-go
// does not report that, but its next step does:
//
//   - After a list it sends a watch. If the list could not be decoded, it reports an error.
//   - It reads more of a watch when it has decoded the events before. If it could not decode one,
//     it closes the response. It takes nothing from a watch that begins with a list before the
//     mark of the list's end.
//
// Data of any other watch counts at once: it comes after a list that was decoded.

// lists has the state of an informer's lists.
type lists struct {
	data     int64  // the time of the last data of a list; 0 if it was decoded, or is void
	complete bool   // the last response was read to its end
	failures int    // lists in a row that could not be decoded
	err      error  // of the last of them
	object   string // that a watch could not decode before such a list; "" if it is unknown
	behind   bool   // the last watch with a list failed because the watch cache is too old
}

const (
	mark     = "k8s.io/initial-events-end" // metav1.InitialEventsAnnotationKey
	bookmark = `{"type":"BOOKMARK"`        // begins a line of JSON
	failure  = `{"type":"ERROR"`           // also; shorter than bookmark
	tooLarge = "ResourceVersionTooLarge"   // metav1.CauseTypeResourceVersionTooLarge; shorter than mark
	maxLine  = 4 << 20                     // bytes of an event that are searched for its name
)

// began notes the start of a request.
func (i *Informer) began(kind Kind) {
	i.mu.Lock()
	at := i.lists.data
	if kind != List {
		i.lists.data = 0 // of a list that a watch with a list replaces, it is void
	}
	i.lists.complete = false
	i.mu.Unlock()
	if kind == Watch && at > 0 {
		i.decoded(at)
	}
}

// Failed notes that the current list or watch ended with an error. It returns the number of
// lists in a row that were received and could not be decoded, and 0 if the error has another
// reason. For a nil Informer it returns 0.
func (i *Informer) Failed(err error) int {
	if i == nil {
		return 0
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	complete := i.lists.complete
	i.lists.data, i.lists.complete = 0, false
	if !complete {
		return 0
	}
	i.lists.failures++
	i.lists.err = err
	return i.lists.failures
}

// Undecodable returns the number of lists in a row that could not be decoded, the object that is
// the reason, as namespace/name, or "" if it is not known, and the last error. The text is the
// API server's.
func (i *Informer) Undecodable() (failures int, object string, err error) {
	if i == nil {
		return 0, "", nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.lists.failures, i.lists.object, i.lists.err
}

func (i *Informer) failing() bool {
	failures, _, _ := i.Undecodable()
	return failures > 0
}

// decoded notes that the data of a time was decoded.
func (i *Informer) decoded(at int64) {
	i.received.Store(at)
	i.mu.Lock()
	i.lists.failures, i.lists.object, i.lists.err, i.lists.behind = 0, "", nil, false
	i.mu.Unlock()
}

// Behind reports whether the last watch with a list failed because the API server's watch cache is
// older than the version of the list. client-go sends such a watch again without a pause and without
// end, but a list is served from etcd. The second call returns false. For a nil Informer it returns
// false.
func (i *Informer) Behind() bool {
	if i == nil {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	behind := i.lists.behind
	i.lists.behind = false
	return behind
}

// reader is the body of a response.
type reader struct {
	io.ReadCloser
	informer *Informer
	kind     Kind
	end      func()
	split    bool   // returns at most one line in a Read, so that the line that ends a watch is known
	rest     []byte // was read after the returned line

	at     int64  // the time of the last data of a list
	json   bool   // each event is a line of JSON
	marked bool   // the end of the list was read
	head   []byte // of the current line
	tail   []byte // the last bytes, which the mark could begin in

	mu   sync.Mutex // guards line, because Close can be called during a Read
	line []byte     // the current line, if split
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	r.begin()
	n, err := r.next(p)
	if n > 0 {
		at := max(1, r.informer.touch())
		r.informer.read.Store(at)
		if r.kind == Watch {
			r.informer.decoded(at)
		} else {
			r.see(p[:n], at)
		}
	}
	if err != nil {
		r.mu.Lock()
		r.line = nil
		r.mu.Unlock()
	}
	if r.kind == List {
		r.informer.mu.Lock()
		r.informer.lists.data = r.at
		r.informer.lists.complete = errors.Is(err, io.EOF)
		r.informer.mu.Unlock()
	}
	return n, err
}

// begin notes that the caller has decoded the lines that it got.
func (r *reader) begin() {
	r.mu.Lock()
	if bytes.HasSuffix(r.line, newline) {
		r.line = r.line[:0]
	}
	r.mu.Unlock()
	if r.kind == InitialWatch && r.marked {
		r.kind, r.split = Watch, false
		r.informer.decoded(r.at)
	}
}

var newline = []byte{'\n'}

// next reads, and if split, at most to the end of a line.
func (r *reader) next(p []byte) (n int, err error) {
	if len(r.rest) > 0 {
		n = copy(p, r.rest)
	} else {
		n, err = r.ReadCloser.Read(p)
	}
	kept := n
	if r.split {
		if i := bytes.IndexByte(p[:n], '\n'); i >= 0 {
			kept = i + 1
		}
	}
	switch {
	case len(r.rest) > 0:
		r.rest = r.rest[kept:]
	case kept < n:
		r.rest = bytes.Clone(p[kept:n])
		err = nil // comes again after the rest
	}
	return kept, err
}

// see notes what is in the data of a list.
func (r *reader) see(data []byte, at int64) {
	started := r.at > 0
	r.at = at
	if r.kind != InitialWatch {
		return
	}
	if !started {
		r.json = data[0] == '{'
	}
	if !r.json {
		r.find(data)
	}
	for line := range bytes.Lines(data) {
		if !r.json {
			break
		}
		// The mark counts in a bookmark alone, and the cause in an error: an object can contain them.
		if missing := len(bookmark) - len(r.head); missing > 0 {
			r.head = append(r.head, line[:min(missing, len(line))]...)
		}
		if string(r.head) == bookmark || bytes.HasPrefix(r.head, []byte(failure)) {
			r.find(line)
		}
		if bytes.HasSuffix(line, newline) {
			r.head, r.tail = r.head[:0], r.tail[:0]
		}
	}
	if !r.split {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.line)+len(data) <= maxLine {
		r.line = append(r.line, data...)
	} else {
		r.line = nil
	}
}

// find searches the mark, and the cause of an error.
func (r *reader) find(data []byte) {
	r.tail = append(r.tail, data...)
	r.marked = r.marked || bytes.Contains(r.tail, []byte(mark))
	if bytes.Contains(r.tail, []byte(tooLarge)) {
		r.informer.mu.Lock()
		r.informer.lists.behind = true
		r.informer.mu.Unlock()
	}
	r.tail = append(r.tail[:0], r.tail[max(0, len(r.tail)-len(mark)+1):]...)
}

// Close implements io.Closer.
func (r *reader) Close() error {
	r.mu.Lock()
	line := r.line
	r.line = nil
	r.mu.Unlock()
	if name := object(line); name != "" {
		r.informer.mu.Lock()
		r.informer.lists.object = name
		r.informer.mu.Unlock()
	}
	defer r.end()
	return r.ReadCloser.Close()
}

// object returns the name of the object in an event, or "".
func object(line []byte) string {
	var event struct {
		Object struct {
			Metadata struct{ Namespace, Name string }
		}
	}
	if len(line) == 0 || json.Unmarshal(line, &event) != nil { // a part of a line is no JSON
		return ""
	}
	switch m := event.Object.Metadata; {
	case m.Name == "" || m.Namespace == "":
		return m.Name
	default:
		return m.Namespace + "/" + m.Name
	}
}
