package fault

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// An Op is a request to the API server, read from its method, URL and body.
type Op struct {
	Verb        string // create, get, list, watch, update, patch, apply, delete, deletecollection; the lower-case method if the path does not name an object
	Resource    string // plural[.group]; the path if it does not name an object
	Version     string // of the API
	Subresource string
	Namespace   string
	Name        string
	Generated   bool       // Name is metadata.generateName
	Query       url.Values // never nil
	ContentType string     // of Body
	Body        []byte     // of a write, in JSON if the client sends protobuf; must not be modified
}

// IsWrite reports whether the request can change something.
func (o *Op) IsWrite() bool {
	switch o.Verb {
	case "create", "update", "patch", "apply", "delete", "deletecollection":
		return !o.isDryRun() && !strings.HasSuffix(o.Resource, "reviews.authorization.k8s.io") &&
			!strings.HasSuffix(o.Resource, "reviews.authentication.k8s.io") && o.Subresource != "token"
	}
	return false
}

// isDryRun also reads the body, which holds the option of a deletion.
func (o *Op) isDryRun() bool {
	if slices.Contains(o.Query["dryRun"], "All") {
		return true
	}
	var options struct{ DryRun []string }
	return strings.HasPrefix(o.Verb, "delete") && json.Unmarshal(o.Body, &options) == nil && slices.Contains(options.DryRun, "All")
}

// IsReflector reports whether the request is a list or a watch that fills a cache.
func (o *Op) IsReflector() bool {
	return o.Verb == "watch" || o.Verb == "list" && (o.Query.Has("resourceVersion") || o.Query.Get("limit") == "500")
}

// parse reads a request. It leaves the body readable.
func parse(r *http.Request, prefix string) (*Op, error) {
	op := &Op{Query: r.URL.Query(), ContentType: r.Header.Get("Content-Type")}
	if r.Body != nil && r.Body != http.NoBody {
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		op.ContentType, op.Body = readable(op.ContentType, body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	path := strings.Trim(strings.TrimPrefix(r.URL.Path, prefix), "/")
	if !op.parsePath(strings.Split(path, "/")) {
		op.Verb, op.Resource = strings.ToLower(r.Method), "/"+path
		return op, nil
	}
	switch r.Method {
	case http.MethodGet:
		switch watch := strings.ToLower(op.Query.Get("watch")); {
		case op.Name != "":
			op.Verb = "get"
		case op.Query.Has("watch") && watch != "false" && watch != "0":
			op.Verb = "watch"
		default:
			op.Verb = "list"
		}
	case http.MethodPost:
		op.Verb = "create"
		op.nameFromBody()
	case http.MethodPut:
		op.Verb = "update"
	case http.MethodPatch:
		op.Verb = "patch"
		if strings.HasPrefix(op.ContentType, "application/apply-patch") {
			op.Verb = "apply"
		}
	case http.MethodDelete:
		op.Verb = "delete"
		if op.Name == "" {
			op.Verb = "deletecollection"
		}
	default:
		op.Verb = strings.ToLower(r.Method)
	}
	return op, nil
}

// parsePath reads /api/v1/ or /apis/group/version/, followed by
// [namespaces/ns/]resource[/name[/subresource...]].
func (o *Op) parsePath(parts []string) bool {
	group := ""
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		o.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		group, o.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return false
	}
	// The subresources of a namespace itself have the same form.
	if parts[0] == "namespaces" && len(parts) >= 3 && (len(parts) > 3 || parts[2] != "status" && parts[2] != "finalize") {
		o.Namespace, parts = parts[1], parts[2:]
	}
	o.Resource = parts[0]
	if group != "" {
		o.Resource += "." + group
	}
	if len(parts) > 1 {
		o.Name = parts[1]
	}
	if len(parts) > 2 {
		o.Subresource = strings.Join(parts[2:], "/")
	}
	return true
}

// nameFromBody finds the name of a created object.
func (o *Op) nameFromBody() {
	if o.Name != "" || !strings.Contains(o.ContentType, "json") {
		return
	}
	var object struct {
		Metadata struct{ Name, GenerateName string }
	}
	if json.Unmarshal(o.Body, &object) != nil {
		return
	}
	o.Name = object.Metadata.Name
	if o.Name == "" && object.Metadata.GenerateName != "" {
		o.Name, o.Generated = object.Metadata.GenerateName, true
	}
}

// readable translates protobuf, the default of client-go's typed clients, to JSON.
func readable(contentType string, body []byte) (string, []byte) {
	if contentType != runtime.ContentTypeProtobuf {
		return contentType, body
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return contentType, body
	}
	translated, err := json.Marshal(object)
	if err != nil {
		return contentType, body
	}
	return runtime.ContentTypeJSON, translated
}

// acceptJSON requests JSON if the client prefers protobuf or CBOR. Clients of the API
// read all of them.
func acceptJSON(h http.Header) {
	for n, value := range h["Accept"] {
		parts := strings.Split(value, ",")
		for m, part := range parts {
			media, rest, _ := strings.Cut(strings.TrimSpace(part), ";")
			switch media {
			case runtime.ContentTypeProtobuf, runtime.ContentTypeCBOR, runtime.ContentTypeCBORSequence:
				parts[m] = runtime.ContentTypeJSON
				if rest = strings.TrimPrefix(rest, "stream=watch"); rest != "" {
					parts[m] += ";" + strings.TrimPrefix(rest, ";")
				}
			}
		}
		h["Accept"][n] = strings.Join(parts, ",")
	}
}
