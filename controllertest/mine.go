package controllertest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
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

// withoutOthers returns a transport that removes the objects of other runs from watches and
// lists. Runs side by side otherwise decode each other's events, which took half of the
// processor time of 64 controllers that watch all namespaces. other reports whether the
// object of these names belongs to another run, and may whether a text can be about one.
// Responses other than JSON are unchanged.
func withoutOthers(may func(text []byte) bool, other func(namespace, name string) bool) func(http.RoundTripper) http.RoundTripper {
	watches := onlyMine(func(line []byte) bool {
		if !may(line) {
			return true
		}
		namespace, name, ok := namesOf(line)
		return !ok || !other(namespace, name)
	})
	return func(next http.RoundTripper) http.RoundTripper {
		return othersTransport{next: watches(next), may: may, other: other}
	}
}

// namesOf returns the names of the object of an event.
func namesOf(event []byte) (namespace, name string, ok bool) {
	if names := builtIn.FindSubmatch(event[:min(len(event), 1<<10)]); names != nil {
		return string(names[2]), string(names[1]), true
	}
	var of struct{ Object named }
	ok = json.Unmarshal(event, &of) == nil
	return of.Object.Metadata.Namespace, of.Object.Metadata.Name, ok
}

// named has the names of an object.
type named struct {
	Metadata struct{ Namespace, Name string }
}

// builtIn matches an event of a built-in kind up to its names, with which its metadata begins.
// Decoding whole events took a fifth of the explorer's time.
var builtIn = regexp.MustCompile(`^{"type":"[A-Z]+","object":{"kind":"\w+","apiVersion":"[\w./-]+","metadata":{"name":"([^"\\]*)"(?:,"generateName":"[^"\\]*")?(?:,"namespace":"([^"\\]*)")?,"uid"`)

type othersTransport struct {
	next  http.RoundTripper
	may   func(text []byte) bool
	other func(namespace, name string) bool
}

func (t othersTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t othersTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err != nil || req.Method != http.MethodGet || resp.StatusCode != http.StatusOK || req.URL.Query().Get("watch") != "" ||
		!strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		return resp, err
	}
	data, err := io.ReadAll(resp.Body)
	if err == nil {
		data, err = t.list(data), io.EOF
		resp.ContentLength = int64(len(data))
		resp.Header.Del("Content-Length")
	}
	resp.Body = remainder{io.MultiReader(bytes.NewReader(data), ending{err}), resp.Body}
	return resp, nil
}

// list returns a list without the objects of other runs, and any other text as it is.
func (t othersTransport) list(data []byte) []byte {
	if !t.may(data) {
		return data
	}
	var list map[string]json.RawMessage
	var kind string
	var items []json.RawMessage
	if json.Unmarshal(data, &list) != nil || json.Unmarshal(list["kind"], &kind) != nil || !strings.HasSuffix(kind, "List") || json.Unmarshal(list["items"], &items) != nil {
		return data
	}
	kept := []json.RawMessage{}
	for _, item := range items {
		var obj named
		if json.Unmarshal(item, &obj) != nil || !t.other(obj.Metadata.Namespace, obj.Metadata.Name) {
			kept = append(kept, item)
		}
	}
	if len(kept) == len(items) {
		return data
	}
	raw, err := json.Marshal(kept)
	if err != nil {
		return data
	}
	list["items"] = raw
	if filtered, err := json.Marshal(list); err == nil {
		return filtered
	}
	return data
}

// remainder is the rest of a body.
type remainder struct {
	io.Reader
	io.Closer
}

// ending is a reader that returns an error.
type ending struct{ err error }

func (e ending) Read([]byte) (int, error) { return 0, e.err }
