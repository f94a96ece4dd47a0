package fault_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// gone410 is what a server sends when a version is too old.
const gone410 = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}` + "\n"

// chunked is a server whose streams are written in pieces by the test.
type chunked struct {
	mu      sync.Mutex
	streams map[string]chan string
}

func (c *chunked) stream(id string) chan string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[id] == nil {
		c.streams[id] = make(chan string)
	}
	return c.streams[id]
}

func (c *chunked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	events(c.stream(r.URL.Query().Get("id")))(w, r)
}

// TestStreamIsAPrefix: however a stream is held, cut and filtered, and however the
// server's lines are split into pieces, what arrives is a beginning of the lines
// that were sent, in their order, and after it at most one 410; of an event that was
// cut nothing can be taken for an event.
//
// Proves N3.
func TestStreamIsAPrefix(t *testing.T) {
	t.Parallel()
	server := &chunked{streams: map[string]chan string{}}
	cfg := serve(t, server.ServeHTTP)
	noBookmark := false
	i := incarnate(t, cfg, func(*fault.Op) fault.Fault {
		if noBookmark {
			return fault.Fault{NoBookmark: time.Hour}
		}
		return fault.Fault{}
	}, nil)
	other := incarnate(t, cfg, nil, nil)
	c := client(t, i)
	id := 0
	seen := map[string]int{}
	check := func(rt *rapid.T) {
		id++
		var lines []string
		for n := range rapid.IntRange(0, 6).Draw(rt, "lines") {
			switch kind := rapid.IntRange(0, 4).Draw(rt, "kind"); kind {
			case 0:
				lines = append(lines, fmt.Sprintf(`{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n", n))
			case 1: // no bookmark, for all that it says
				lines = append(lines, fmt.Sprintf(`{"type":"MODIFIED","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n", n))
			case 2: // nor the one that ends the initial list
				lines = append(lines, fmt.Sprintf(`{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"%d"}}}`+"\n", n))
			default:
				lines = append(lines, strings.Replace(added(n), `"kind"`, `"data":{"x":"`+strings.Repeat("x", rapid.SampledFrom([]int{0, 10, 5000, 40000}).Draw(rt, "size"))+`"},"kind"`, 1))
			}
		}
		noBookmark = rapid.Bool().Draw(rt, "noBookmark")
		want := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
			return noBookmark && strings.HasPrefix(line, `{"type":"BOOKMARK"`) && strings.Contains(line, "initial-events-end")
		})

		if len(want) < len(lines) {
			seen["filtered"]++
		}
		var release []func()
		defer func() { // rapid ends examples anywhere
			for _, f := range release {
				f()
			}
		}()
		if rapid.Bool().Draw(rt, "held from the beginning") {
			release = append(release, i.Hold("configmaps"))
		}
		response, err := c.Do(request(t, i, http.MethodGet, configMaps+"?watch=true&id="+strconv.Itoa(id), ""))
		if err != nil {
			rt.Fatal(err)
		}
		defer response.Body.Close()
		type outcome struct {
			bytes string
			err   error
		}
		outcomes := make(chan outcome, 1)
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{1, 2, 7, 100, 4096, 1 << 16}), 1, 5).Draw(rt, "reads")
		go func() {
			var all strings.Builder
			for n := 0; ; n++ {
				p := make([]byte, sizes[n%len(sizes)])
				m, err := response.Body.Read(p)
				all.Write(p[:m])
				if err != nil {
					outcomes <- outcome{all.String(), err}
					return
				}
			}
		}()

		stream := server.stream(strconv.Itoa(id))
		rest := strings.Join(lines, "")
		cut, wasGone := false, false
		const cutting = 10
		end := rapid.SampledFrom([]int{-1, -1, -1, 1, 3, 8, 20}).Draw(rt, "cut after") // or not at all
		for n := 0; len(rest) > 0 && !cut; n++ {
			action := rapid.IntRange(0, 9).Draw(rt, "action")
			if n == end {
				action = cutting
			}
			switch action {
			case 0:
				release = append(release, i.Hold(rapid.SampledFrom([]string{"", "configmaps", "secrets"}).Draw(rt, "resource")))
			case 1, 2:
				if len(release) > 0 {
					release[0]()
					release = release[1:]
				}
			case cutting:
				cut, wasGone = true, rapid.Bool().Draw(rt, "gone")
				i.Cut(rapid.SampledFrom([]string{"", "configmaps"}).Draw(rt, "resource"), wasGone)
				i.Cut("configmaps", !wasGone) // comes too late
			case 4:
				i.Cut("secrets", true) // is of no concern
				other.Cut("", true)
			default:
				n := rapid.IntRange(1, min(len(rest), rapid.SampledFrom([]int{20, 300, 50000}).Draw(rt, "most"))).Draw(rt, "piece")
				stream <- rest[:n]
				rest = rest[n:]
			}
		}
		if !cut {
			close(stream)
		}
		for _, f := range release {
			f()
		}
		got := <-outcomes
		_ = response.Body.Close()

		// What a client makes of it.
		var decoded []string
		decoder := json.NewDecoder(io.MultiReader(strings.NewReader(got.bytes), failing{got.err}))
		var last error
		for last == nil {
			var raw json.RawMessage
			if last = decoder.Decode(&raw); last == nil {
				decoded = append(decoded, string(raw)+"\n")
			}
		}
		if n := len(decoded); n > 0 && decoded[n-1] == gone410 {
			decoded = decoded[:n-1]
			seen["410"]++
			if !wasGone {
				rt.Fatalf("a 410 that nobody asked for")
			}
		}
		if len(decoded) > len(want) || !slices.Equal(decoded, want[:len(decoded)]) {
			rt.Fatalf("delivered\n%q\nwhich is no beginning of\n%q", decoded, want)
		}
		switch {
		case !cut:
			seen["whole"]++
			if len(decoded) != len(want) || !errors.Is(last, io.EOF) || errors.Is(last, io.ErrUnexpectedEOF) {
				rt.Fatalf("%d of %d events without a cut, and then %v", len(decoded), len(want), last)
			}
		case wasGone && errors.Is(last, io.EOF):
			seen["gone"]++
		case errors.Is(last, io.ErrUnexpectedEOF):
			seen["cut"]++
		default:
			rt.Fatalf("after the cut it ended with %v", last)
		}
	}
	for range 5 {
		rapid.Check(t, check)
	}
	t.Log(seen)
	for _, what := range []string{"whole", "410", "cut", "filtered"} {
		if seen[what] == 0 {
			t.Errorf("no example was of the kind %q: %v", what, seen)
		}
	}
}

// failing ends a reader as the stream ended.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
