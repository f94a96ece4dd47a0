package alive_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/controllerkit/controllerkit/internal/alive"
)

const (
	added = `{"type":"ADDED","object":{"metadata":{"namespace":"shop","name":"a"}}}` + "\n"
	bad   = `{"type":"ADDED","object":{"metadata":{"namespace":"shop","name":"b"},"spec":{"n":"x"}}}` + "\n"
	end   = `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"
	trap  = `{"type":"ADDED","object":{"metadata":{"name":"t","annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"a":{"type":"BOOKMARK"}}}}` + "\n"
)

// consume decodes events as client-go does: it reads when its buffer has no whole event, and closes
// the body at the first event that contains "x".
func consume(t *testing.T, body io.ReadCloser) {
	t.Helper()
	decoder := json.NewDecoder(body)
	for {
		var event json.RawMessage
		if err := decoder.Decode(&event); err != nil || strings.Contains(string(event), `"x"`) {
			break
		}
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
}

// blind makes an informer with a number of lists that could not be decoded.
func blind(t *testing.T, failures int) *alive.Informer {
	t.Helper()
	i := alive.New(alive.Metrics{})
	for n := range failures {
		body := i.Body(io.NopCloser(strings.NewReader("list")), alive.List, i.Begin(alive.List))
		if _, err := io.ReadAll(body); err != nil {
			t.Fatal(err)
		}
		if got := i.Failed(errFailed); got != n+1 {
			t.Fatalf("Failed() = %d, want %d", got, n+1)
		}
	}
	return i
}

// TestInitialWatch: the data of a watch that begins with a list counts when the list's end was
// decoded, in pieces of any size. If a list has failed before, the last event before the end of
// the watch is known.
func TestInitialWatch(t *testing.T) {
	for name, tc := range map[string]struct {
		stream string
		alive  bool
		object string
	}{
		"decoded":             {stream: added + end, alive: true},
		"cut off":             {stream: added},
		"malformed":           {stream: added + bad + added + end, object: "shop/b"},
		"malformed at first":  {stream: bad + end, object: "shop/b"},
		"a mark in an object": {stream: trap + bad + end, object: "shop/b"},
		"cluster-scoped":      {stream: strings.ReplaceAll(bad, `"namespace":"shop",`, "") + end, object: "b"},
		"too long to search":  {stream: strings.ReplaceAll(bad, "shop", strings.Repeat("s", 4<<20)) + end},
		"no name":             {stream: `{"x":[]}` + "\n" + `{"type":"x"}` + "\n" + end},
		"CBOR":                {stream: "\xd9\xd9\xf7" + `x "k8s.io/initial-events-end"`},
	} {
		for pieces, of := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r },
			"half":  iotest.HalfReader,
			"bytes": iotest.OneByteReader,
			"eof":   iotest.DataErrReader,
		} {
			if len(tc.stream) > 1<<20 && pieces != "whole" {
				continue // slow
			}
			for failures := range 2 {
				t.Run(fmt.Sprintf("%s, %s, %d", name, pieces, failures), func(t *testing.T) {
					i := blind(t, failures)
					consume(t, i.Body(io.NopCloser(of(strings.NewReader(tc.stream))), alive.InitialWatch, i.Begin(alive.InitialWatch)))
					if got := !i.LastReceived().IsZero(); got != tc.alive {
						t.Errorf("alive %v, want %v", got, tc.alive)
					}
					lists, object, _ := i.Undecodable()
					want, wantObject := failures, tc.object
					if tc.alive {
						want = 0
					}
					if failures == 0 {
						wantObject = ""
					}
					if lists != want || object != wantObject {
						t.Errorf("Undecodable() = %d, %q, want %d, %q", lists, object, want, wantObject)
					}
				})
			}
		}
	}
}

// TestBehind: an error with the cause that the watch cache is too old counts once, in pieces of any
// size, until a list has been decoded.
func TestBehind(t *testing.T) {
	const (
		behind = `{"type":"ERROR","object":{"kind":"Status","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]},"code":504}}` + "\n"
		other  = `{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410}}` + "\n"
		named  = `{"type":"ADDED","object":{"metadata":{"name":"n","labels":{"type":"ERROR","a":"ResourceVersionTooLarge"}}}}` + "\n"
	)
	for name, tc := range map[string]struct {
		stream string
		kind   alive.Kind
		want   bool
	}{
		"behind":                {stream: behind, want: true},
		"behind after an event": {stream: added + behind, want: true},
		"protobuf":              {stream: "\x00\x00\x01\x0ak8s\x00 ERROR ResourceVersionTooLarge", want: true},
		"another error":         {stream: other},
		"in an object":          {stream: named},
		"in protobuf, decoded":  {stream: "\x00\x00\x01\x0ak8s\x00 ResourceVersionTooLarge k8s.io/initial-events-end"},
		"no list":               {stream: behind, kind: alive.Watch},
	} {
		if tc.kind == alive.List {
			tc.kind = alive.InitialWatch
		}
		for pieces, of := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r },
			"bytes": iotest.OneByteReader,
		} {
			t.Run(name+", "+pieces, func(t *testing.T) {
				i := alive.New(alive.Metrics{})
				body := i.Body(io.NopCloser(of(strings.NewReader(tc.stream))), tc.kind, i.Begin(tc.kind))
				if _, err := io.ReadAll(body); err != nil {
					t.Error(err)
				}
				if got, again := i.Behind(), i.Behind(); got != tc.want || again {
					t.Errorf("Behind() = %v, then %v, want %v, then false", got, again, tc.want)
				}
			})
		}
	}
	if (*alive.Informer)(nil).Behind() {
		t.Error("a nil Informer is behind")
	}
}

var errFailed = errors.New("failed")

// TestLists: the data of a list counts when a watch follows, and a list that was received to its
// end and failed counts as one that could not be decoded.
func TestLists(t *testing.T) {
	received, last := 0, time.Time{}
	i := alive.New(alive.Metrics{})
	list := func(r io.Reader) {
		t.Helper()
		body := i.Body(io.NopCloser(r), alive.List, i.Begin(alive.List))
		_, _ = io.ReadAll(body)
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	}
	check := func(when string, failures, data int) {
		t.Helper()
		if at := i.LastReceived(); !at.Equal(last) {
			received, last = received+1, at
		}
		if got, _, _ := i.Undecodable(); got != failures || received != data || (data == 0) != i.LastReceived().IsZero() {
			t.Errorf("%s: %d failures, %d times data, last %v, want %d, %d", when, got, received, i.LastReceived(), failures, data)
		}
	}
	page := func() io.Reader { return strings.NewReader("page") }
	list(page())
	check("before the next request", 0, 0)
	i.Failed(errFailed)
	check("after the first failure", 1, 0)
	list(page())
	list(page())
	i.Failed(errFailed)
	check("after a list in pages", 2, 0)
	i.Begin(alive.List)() // refused
	i.Failed(errFailed)
	check("after a refusal", 2, 0)
	list(iotest.TimeoutReader(iotest.OneByteReader(page())))
	i.Failed(errFailed)
	check("after a cut connection", 2, 0)
	i.Begin(alive.InitialWatch)()
	check("after a watch with a list", 2, 0)
	list(page())
	i.Begin(alive.Watch)()
	check("after a list and a watch", 0, 1)
	i.Begin(alive.Watch)()
	check("after another watch", 0, 1)
	body := i.Body(io.NopCloser(strings.NewReader(added)), alive.Watch, i.Begin(alive.Watch))
	consume(t, body)
	check("after an event", 0, 2)

	var none *alive.Informer
	none.Begin(alive.List)()
	if lists, object, _ := none.Undecodable(); none.Failed(errFailed) != 0 || lists != 0 || object != "" {
		t.Error("a nil Informer has failures")
	}
}
