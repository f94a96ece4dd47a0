package preview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/wire"
	"github.com/controllerkit/controllerkit/preview/internal/diff"
)

// publishing is how often, once a second, a document is read: that of a new CustomResourceDefinition comes a moment after it.
const publishing = 5

// maxBody bounds the bytes of a body that is read: the API server accepts 3 MiB.
const maxBody = 16 << 20

// refusedError is the error of a request that was not sent.
type refusedError string

func (e refusedError) Error() string { return "preview: not sent: " + string(e) }

// NotSent returns true, for package consistency.
func (refusedError) NotSent() bool { return true }

// Transport returns a transport that makes each write a dry run and notes what it would change. It has the form
// of rest.Config.Wrap. Wrap the configuration before clients are made of it. A write needs up to two requests more: a read of
// the object, and, for an extension, one read of its OpenAPI document. Events, and requests that are never stored, such as reviews and
// tokens, are not in the report.
func (p *Preview) Transport(next http.RoundTripper) http.RoundTripper {
	if kube.IsNil(next) {
		next = http.DefaultTransport
	}
	return &transport{p, next}
}

type transport struct {
	preview *Preview
	next    http.RoundTripper
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c, ok := req.Context().Value(callKey{}).(*call)
	if !ok {
		c = &t.preview.stray
	}
	if !kube.IsWrite(req) {
		if resp := c.read(req); resp != nil {
			return resp, nil
		}
		return t.next.RoundTrip(req)
	}
	target, verb, ok := wire.Parse(req)
	if unstored(target) {
		return t.next.RoundTrip(req)
	}
	resp, err := t.write(req, c, target, verb, ok)
	if req.Body != nil {
		_ = req.Body.Close() // a RoundTripper closes it
	}
	return resp, err
}

// unstored reports whether a write changes nothing: a review of rights or tokens, or a token.
func unstored(t wire.Target) bool {
	return t.Resource.Group == "authentication.k8s.io" || t.Resource.Group == "authorization.k8s.io" ||
		t.Resource == schema.GroupResource{Resource: "serviceaccounts"} && t.Subresource == "token"
}

func (t *transport) write(req *http.Request, c *call, target wire.Target, verb string, known bool) (*http.Response, error) {
	if !known {
		return nil, refusedError(fmt.Sprintf("%s %s cannot be a dry run", req.Method, kube.Printable(req.URL.Path, maxText)))
	}
	if err := t.preview.dryRuns(req, t.next, target); err != nil {
		return nil, err
	}
	dry, wanted, err := dryRun(req, verb)
	if err != nil {
		return nil, err
	}
	if wanted || events(target) { // the caller wants a dry run, or it is an Event
		return t.next.RoundTrip(dry)
	}
	change := Change{Resource: target.Resource.String(), Subresource: target.Subresource, Namespace: target.Namespace, Name: target.Name}
	object := req.URL.Path
	if target.Subresource != "scale" { // which has fields of its own
		object = strings.TrimSuffix(object, "/"+target.Subresource)
	}
	var before map[string]any
	if target.Name != "" && verb != "create" {
		if before, err = read(req, t.next, object, verb); err != nil {
			change.Note = kube.Printable("Its fields are not known: "+err.Error(), maxText)
		}
	}
	resp, err := t.next.RoundTrip(dry)
	if err != nil || resp.StatusCode >= http.StatusMultipleChoices {
		return resp, err
	}
	body, err := hold(resp)
	if err != nil {
		return resp, nil //nolint:nilerr // the caller gets the error with the rest of the body
	}
	after := t.object(dry, resp, body)
	left := after // what a read of the call finds; nil if the object would be gone
	if gone(dry, target, after) {
		left = nil
	}
	switch {
	case verb == "deletecollection":
		items, _ := after["items"].([]any)
		for _, item := range items {
			item, _ := item.(map[string]any)
			change.Action, change.Namespace, change.Name = Destroy, diff.Text(item, "metadata", "namespace"), diff.Text(item, "metadata", "name")
			c.change(change)
		}
	case target.Subresource != "" && verb == "create": // of a Pod: a binding or an eviction
		change.Action = Modify
		if target.Subresource == "eviction" {
			change.Action = Destroy
		}
		c.change(change)
	case verb == "delete":
		change.Action = Destroy
		c.change(change)
		c.wrote(object, left)
	default:
		if verb == "create" {
			change.Name = diff.Text(after, "metadata", "name")
			object = path.Join(object, change.Name)
		}
		c.compare(change, before, after)
		c.wrote(object, left)
	}
	return resp, nil
}

// gone reports whether a write removes the object of its response, as a deletion does that waits for nothing.
func gone(req *http.Request, target wire.Target, after map[string]any) bool {
	body, _ := json.Marshal(after) // it was decoded from JSON
	var r wire.Reader
	effect, _ := r.Effect(req, &http.Response{Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body))}, target)
	return effect.Gone != "" || req.Method == http.MethodDelete && diff.Text(after, "kind") == "Status"
}

func events(t wire.Target) bool {
	return t.Resource.Resource == "events" && (t.Resource.Group == "" || t.Resource.Group == "events.k8s.io")
}

// dryRun returns a request that changes nothing and whose response is JSON. wanted reports that req was a dry run.
func dryRun(req *http.Request, verb string) (dry *http.Request, wanted bool, err error) {
	body := []byte{}
	if req.Body != nil {
		if body, err = io.ReadAll(io.LimitReader(req.Body, maxBody+1)); err != nil {
			return nil, false, refusedError("its body cannot be read: " + err.Error())
		}
	}
	if len(body) > maxBody {
		return nil, false, refusedError(fmt.Sprintf("its body has more than %d bytes", maxBody))
	}
	dry = req.Clone(req.Context())
	query := req.URL.Query()
	wanted = slices.Equal(query["dryRun"], []string{metav1.DryRunAll})
	query.Set("dryRun", metav1.DryRunAll)
	dry.URL.RawQuery = query.Encode()
	if strings.HasPrefix(verb, "delete") && len(body) > 0 {
		// The API server ignores the query of a deletion whose options are in the body.
		options, err := wire.DeleteOptions(req.Header, body)
		if err != nil {
			return nil, false, refusedError("the options of the deletion cannot be read: " + err.Error())
		}
		wanted = len(options.DryRun) > 0
		options.DryRun = []string{metav1.DryRunAll}
		options.APIVersion, options.Kind = "meta.k8s.io/v1", "DeleteOptions"
		if body, err = json.Marshal(options); err != nil {
			return nil, false, refusedError(err.Error())
		}
		dry.Header.Set("Content-Type", "application/json")
	}
	if !partial(req.Header) {
		dry.Header.Set("Accept", "application/json")
	}
	setBody(dry, body)
	return dry, wanted, nil
}

// partial reports whether the caller wants another form of the object than the whole, such as its metadata.
func partial(h http.Header) bool { return strings.Contains(h.Get("Accept"), "as=") }

func setBody(req *http.Request, body []byte) {
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
	req.ContentLength = int64(len(body))
	if len(body) == 0 {
		req.Body, req.GetBody = http.NoBody, nil
	}
}

// hold returns the body of a response, which the caller can read again.
func hold(resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), resp.Body), resp.Body}
	return body, err
}

// object returns the whole object of the response to a dry run, nil if it is not known.
func (t *transport) object(dry *http.Request, resp *http.Response, body []byte) map[string]any {
	if partial(dry.Header) {
		whole := dry.Clone(dry.Context())
		whole.Header.Set("Accept", "application/json")
		if dry.GetBody != nil {
			whole.Body, _ = dry.GetBody()
		}
		var err error
		if resp, err = t.next.RoundTrip(whole); err != nil {
			return nil
		}
		defer resp.Body.Close()
		if body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody)); err != nil {
			return nil
		}
	}
	var object map[string]any
	if resp.StatusCode >= http.StatusMultipleChoices || decode(bytes.NewReader(body), &object) != nil {
		return nil
	}
	return object
}

// get sends a read with the identity of a request, and decodes its response.
func get(req *http.Request, next http.RoundTripper, path string, into any) error {
	read := req.Clone(req.Context())
	read.Method = http.MethodGet
	read.URL.Path, read.URL.RawPath, read.URL.RawQuery = path, "", ""
	read.Header.Del("Content-Type")
	setBody(read, nil)
	return ask(read, next, into)
}

// ask sends a request, and decodes its response.
func ask(req *http.Request, next http.RoundTripper, into any) error {
	req.Header.Set("Accept", "application/json")
	resp, err := next.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
		return &statusError{resp.StatusCode}
	}
	if err := decode(io.LimitReader(resp.Body, maxBody), into); err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	return nil
}

// decode decodes JSON with whole numbers: a float64 would round them.
func decode(r io.Reader, into any) error {
	d := json.NewDecoder(r)
	d.UseNumber()
	return d.Decode(into) //nolint:wrapcheck // the callers do
}

type statusError struct{ code int }

func (e *statusError) Error() string {
	text := fmt.Sprintf("the API server answered a read with %d %s", e.code, http.StatusText(e.code))
	if e.code == http.StatusForbidden {
		text += ": allow it in the Role"
	}
	return text
}

// read returns the object at a path, nil if it is absent. A Role that allows a patch may not allow get, so the read
// before a patch is a patch, too: an empty one, as a dry run.
func read(req *http.Request, next http.RoundTripper, path, verb string) (object map[string]any, err error) {
	if verb == "patch" {
		empty := req.Clone(req.Context())
		empty.URL.RawQuery = "dryRun=" + metav1.DryRunAll
		empty.Header.Set("Content-Type", string(types.MergePatchType))
		setBody(empty, []byte("{}"))
		err = ask(empty, next, &object)
	} else {
		err = get(req, next, path, &object)
	}
	if status, ok := errors.AsType[*statusError](err); ok && status.code == http.StatusNotFound {
		return nil, nil
	}
	return object, err
}

// A verdict is whether the API server of an extension knows dry runs of a resource.
type verdict struct {
	known bool  // by a document with the resource; otherwise it was waited for
	err   error // nil if it knows them
}

// dryRuns returns an error if the API server of an extension may not know dry runs of a resource. An extension's group
// has a domain. So have some groups of Kubernetes and those of CustomResourceDefinitions, whose documents have the parameter.
func (p *Preview) dryRuns(req *http.Request, next http.RoundTripper, target wire.Target) error {
	group := target.Resource.Group
	if !strings.Contains(group, ".") {
		return nil
	}
	prefix, rest, _ := strings.Cut(req.URL.Path, "/apis/"+group+"/")
	version, _, _ := strings.Cut(rest, "/")
	resource := path.Join(target.Resource.Resource, target.Subresource)
	key := path.Join(group, version, resource)
	p.mu.Lock()
	v, asked := p.verdicts[key]
	p.mu.Unlock()
	if v.known {
		return v.err
	}
	tries := publishing
	if asked {
		tries = 1 // a document that was waited for once is not waited for by each write
	}
	for n := range tries {
		if n > 0 {
			select {
			case <-time.After(time.Second):
			case <-req.Context().Done():
				return context.Cause(req.Context())
			}
		}
		if v = documented(req, next, prefix+"/openapi/v3/apis/"+group+"/"+version, resource); v.known {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.verdicts == nil {
		p.verdicts = map[string]verdict{}
	}
	if !p.verdicts[key].known { // a concurrent write can know it since
		p.verdicts[key] = v
	}
	return v.err
}

// documented reads whether the document of a group and version has the parameter dryRun for a write of a resource or subresource.
func documented(req *http.Request, next http.RoundTripper, document, resource string) verdict {
	type parameter struct {
		Name string `json:"name"`
		Ref  string `json:"$ref"`
	}
	type operation struct {
		Parameters []parameter `json:"parameters"`
	}
	var content struct {
		Paths map[string]struct {
			operation
			Post, Put, Patch, Delete operation
		} `json:"paths"`
	}
	if err := get(req, next, document, &content); err != nil {
		return verdict{err: refusedError(fmt.Sprintf("whether %s knows dry runs is not known: %v", kube.Printable(document, maxText), err))}
	}
	dry := func(o operation) bool {
		return slices.ContainsFunc(o.Parameters, func(p parameter) bool {
			return p.Name == "dryRun" || strings.HasPrefix(p.Ref, "#/components/parameters/dryRun")
		})
	}
	v := verdict{err: refusedError(fmt.Sprintf("the API server of %s documents no dry runs for %s", kube.Printable(document, maxText), resource))}
	for name, p := range content.Paths {
		t, _, _ := wire.Parse(&http.Request{URL: &url.URL{Path: name}})
		if path.Join(t.Resource.Resource, t.Subresource) != resource {
			continue
		}
		if slices.ContainsFunc([]operation{p.operation, p.Post, p.Put, p.Patch, p.Delete}, dry) {
			return verdict{known: true}
		}
		v.known = true
	}
	return v
}

// compare notes the change of a write.
func (c *call) compare(change Change, before, after map[string]any) {
	switch {
	case change.Note != "": // the object before is not known
		change.Action = Modify
	case before == nil:
		change.Action = Create
	case after == nil:
		change.Action, change.Note = Modify, "Its fields are not known: the response is not JSON of an object"
	default:
		change.Action = Modify
		fields, omitted := diff.Fields(before, after, change.Resource == "secrets")
		if len(fields) == 0 {
			return
		}
		for _, f := range fields {
			change.Fields = append(change.Fields, Field(f))
		}
		change.Omitted = omitted
		change.RestartsPods = diff.RestartsPods(change.Resource, before, after)
	}
	c.change(change)
}

// wrote keeps the new object for reads of the call. nil means that it would be gone.
func (c *call) wrote(path string, after map[string]any) {
	var body []byte
	if after != nil {
		body, _ = json.Marshal(after) // it was decoded from JSON
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.after == nil {
		c.after = map[string][]byte{}
	}
	c.after[path] = body
}

// read answers a read of an object that the call has written. nil means that it is another read.
func (c *call) read(req *http.Request) *http.Response {
	if req.Method != http.MethodGet || partial(req.Header) || kube.IsWatch(req.URL) {
		return nil
	}
	c.mu.Lock()
	body, written := c.after[req.URL.Path]
	c.mu.Unlock()
	if !written {
		return nil
	}
	resp := &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}},
	}
	if body == nil {
		target, _, _ := wire.Parse(req)
		resp.StatusCode = http.StatusNotFound
		body, _ = json.Marshal(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
			Message: fmt.Sprintf("%s %q not found", target.Resource, target.Name),
			Details: &metav1.StatusDetails{Group: target.Resource.Group, Kind: target.Resource.Resource, Name: target.Name},
		})
	}
	resp.Status = http.StatusText(resp.StatusCode)
	resp.ContentLength = int64(len(body))
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp
}
