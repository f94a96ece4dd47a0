package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// A remote is a service in another process.
type remote struct{ url string }

// A request and its response, as JSON.
type request struct {
	Call     string
	Resource Resource
}

type response struct {
	Result json.RawMessage
	Error  string
	Kind   string // notFound, exists, or "" for other errors
}

// Handler serves c to another process, which calls [Connect]. If a call fails with an
// error that is not the service's, such as a fault, Handler aborts the connection: the
// client does not learn the outcome.
func Handler(c *Cloud) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !slices.Contains([]string{"create", "get", "list", "update", "delete"}, in.Call) {
			http.Error(w, fmt.Sprintf("call %q does not exist", in.Call), http.StatusBadRequest)
			return
		}
		result, err := c.dispatch(r.Context(), in)
		var out response
		switch {
		case errors.Is(err, ErrNotFound):
			out.Error, out.Kind = err.Error(), "notFound"
		case errors.Is(err, ErrExists):
			out.Error, out.Kind = err.Error(), "exists"
		case errors.Is(err, errNameless):
			out.Error = err.Error()
		case err != nil:
			panic(http.ErrAbortHandler)
		default:
			if out.Result, err = json.Marshal(result); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // the client notices
	})
}

func (c *Cloud) dispatch(ctx context.Context, in request) (any, error) {
	switch r := in.Resource; in.Call {
	case "create":
		return c.Create(ctx, r)
	case "get":
		return c.Get(ctx, r.ID)
	case "list":
		return c.List(ctx, r.Name)
	case "update":
		return nil, c.Update(ctx, r.ID, r.Tags)
	default:
		return nil, c.Delete(ctx, r.ID)
	}
}

// Connect returns a handle on the service that Handler serves at a URL, for a controller
// in another process.
func Connect(url string) *Cloud { return &Cloud{remote: &remote{url: url}} }

func (r *remote) call(ctx context.Context, call string, resource Resource, result any) error {
	body, err := json.Marshal(request{Call: call, Resource: resource})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	// Without kept connections and retries of net/http, so that each call is made once.
	req.Close = true
	req.GetBody = nil
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("cloud: %s: %w", call, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("cloud: %s: %s: %s", call, resp.Status, bytes.TrimSpace(text))
	}
	var out response
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return fmt.Errorf("cloud: %s: %w", call, err)
	}
	switch out.Kind {
	case "notFound":
		return remoteError{out.Error, ErrNotFound}
	case "exists":
		return remoteError{out.Error, ErrExists}
	}
	if out.Error != "" {
		return errors.New(out.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(out.Result, result)
}

// A remoteError has the text of the service's error, and wraps the error that it means.
type remoteError struct {
	text string
	is   error
}

func (e remoteError) Error() string { return e.text }
func (e remoteError) Unwrap() error { return e.is }
