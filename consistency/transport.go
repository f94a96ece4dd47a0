package consistency

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// maxAnswer bounds what is held of an answer. The API server refuses requests over
// 3 MiB and etcd, by default, objects over 1.5 MiB.
const maxAnswer = 8 << 20

// protobufMagic precedes every protobuf message of Kubernetes.
var protobufMagic = []byte("k8s\x00") //nolint:gochecknoglobals // a constant that Go cannot write as one

// ownerKey is the key of the context value that Begin sets. It holds the store, so
// that reconciles of two stores can be nested.
type ownerKey struct{ store *Store }

// Wrap returns a transport that records the writes made with a context of Begin; it
// has the form rest.Config.Wrap wants. All else passes through untouched: reads, dry
// runs, writes of resources without a store, and streams (exec, attach, port-forward,
// proxy). A nil rt means http.DefaultTransport.
func (s *Store) Wrap(rt http.RoundTripper) http.RoundTripper {
	if rt == nil {
		rt = http.DefaultTransport
	}
	return &transport{store: s, next: rt}
}

type transport struct {
	store *Store
	next  http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport below, for example to close
// its idle connections.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	owner, ok := req.Context().Value(ownerKey{t.store}).(types.NamespacedName)
	if !ok || !mutating(req) {
		return t.next.RoundTrip(req)
	}
	target, ok := parsePath(req.URL.Path)
	if !ok {
		return t.next.RoundTrip(req)
	}
	w := write{store: t.store, owner: owner, resource: target.resource}
	if !w.start() {
		return t.next.RoundTrip(req)
	}

	resp, err := t.next.RoundTrip(req)
	switch {
	case err != nil:
		// A connection that was never made has carried nothing.
		if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
			w.ambiguous()
		}
	case resp.StatusCode >= http.StatusInternalServerError:
		w.ambiguous()
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		body, complete := hold(resp)
		switch rv, err := version(resp.Header.Get("Content-Type"), body); {
		case !complete, err != nil:
			w.ambiguous()
		case req.Method == http.MethodDelete && target.name == "":
			w.ambiguous() // the list that was deleted says nothing of the deletions
		default:
			w.recorded(rv)
		}
	}
	return resp, err
}

// mutating reports whether the request can change something.
func mutating(req *http.Request) bool {
	switch req.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return !req.URL.Query().Has("dryRun")
	}
	return false
}

// write is a request that is under way.
type write struct {
	store    *Store
	owner    types.NamespacedName
	resource schema.GroupResource
	started  uint64
}

// start reports whether the resource has a store, and notes when the request began:
// its answer says nothing about writes that are found ambiguous while it is under way.
func (w *write) start() bool {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.clock++
	w.started = w.store.clock
	return w.store.stores[w.resource] != nil
}

func (w *write) recorded(rv string) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.wroteLocked(w.owner, "", w.resource, rv, w.started)
}

func (w *write) ambiguous() {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.clock++
	w.store.recordLocked(w.owner, "").ambiguous[w.resource] = mark{clock: w.store.clock, at: time.Now()}
}

// target is what the path of a request names.
type target struct {
	resource          schema.GroupResource
	name, subresource string
}

// parsePath reads a path of the Kubernetes API, which may stand behind a prefix:
//
//	/api/v1/[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]]
//	/apis/GROUP/VERSION/[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]]
//
// It is false for anything else, and for subresources that are streams.
func parsePath(path string) (target, bool) {
	var t target
	segments := strings.Split(strings.Trim(path, "/"), "/")
	for i, s := range segments {
		if s == "api" && i+1 < len(segments) && segments[i+1] == "v1" {
			segments = segments[i+2:]
			break
		}
		if s == "apis" && i+2 < len(segments) {
			t.resource.Group = segments[i+1]
			segments = segments[i+3:]
			break
		}
		if i == len(segments)-1 {
			return t, false
		}
	}
	// A namespace is an object too: its own subresources are not resources in it.
	if len(segments) >= 3 && segments[0] == "namespaces" &&
		!(len(segments) == 3 && t.resource.Group == "" && (segments[2] == "status" || segments[2] == "finalize")) {
		segments = segments[2:]
	}
	if len(segments) == 0 || segments[0] == "" {
		return t, false
	}
	t.resource.Resource = segments[0]
	if len(segments) > 1 {
		t.name = segments[1]
	}
	if len(segments) > 2 {
		t.subresource = segments[2]
	}
	switch t.subresource {
	case "exec", "attach", "portforward", "proxy", "log":
		return t, false
	}
	return t, true
}

// hold reads the answer's body, up to maxAnswer, and puts a body in its place that
// yields the same bytes and the same error. It reports whether this is all of it.
func hold(resp *http.Response) (body []byte, complete bool) {
	var buf bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= maxAnswer {
		buf.Grow(int(n) + bytes.MinRead) // the margin spares ReadFrom a last growth
	}
	_, err := buf.ReadFrom(io.LimitReader(resp.Body, maxAnswer+1))
	body = buf.Bytes()
	rest := io.Reader(resp.Body) // at its end, or past the limit
	if err != nil {
		rest = failed{err}
	}
	resp.Body = replay{io.MultiReader(bytes.NewReader(body), rest), resp.Body}
	return body, err == nil && len(body) <= maxAnswer
}

type replay struct {
	io.Reader
	io.Closer
}

type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

var errContentType = errors.New("not JSON or protobuf")

// version returns metadata.resourceVersion of the object in body, "" if it has none,
// as a Status.
func version(contentType string, body []byte) (string, error) {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "", err
	}
	switch media {
	case runtime.ContentTypeJSON:
		var object struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		err := json.Unmarshal(body, &object)
		return object.Metadata.ResourceVersion, err
	case runtime.ContentTypeProtobuf:
		raw, ok := bytes.CutPrefix(body, protobufMagic)
		if !ok {
			return "", errContentType
		}
		var envelope runtime.Unknown
		if err := envelope.Unmarshal(raw); err != nil {
			return "", err
		}
		if envelope.ContentEncoding != "" {
			return "", errContentType
		}
		// Every kind has its metadata in field 1; the fields of the kind are skipped. A
		// Status has a ListMeta there, whose fields do not reach the number of this one.
		var object metav1.PartialObjectMetadata
		err := object.Unmarshal(envelope.Raw)
		return object.ResourceVersion, err
	}
	return "", errContentType
}
