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

// A request and its answer, as they travel.
type request struct {
	Call     string
	Resource Resource
}

type answer struct {
	Result json.RawMessage
	Error  string
	Kind   string // notFound, exists, or "" if there is nothing to tell them apart by
}

// Handler serves c to another process, which calls [Connect]. A call whose handle
// returns an error that is none of the service's, as faults do, aborts the
// connection: the client does not learn what became of it.
func Handler(c *Cloud) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !slices.Contains([]string{"create", "get", "list", "update", "delete"}, in.Call) {
			http.Error(w, fmt.Sprintf("there is no call %q", in.Call), http.StatusBadRequest)
			return
		}
		result, err := c.dispatch(r.Context(), in)
		var out answer
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

// Connect returns a handle on the service that Handler serves at a URL, for a
// controller that runs as a process of its own.
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
	// Neither connections that are kept, nor a retry of net/http's own: each call is
	// made once.
	req.Close = true
	req.GetBody = nil
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("cloud: %s: %w", call, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("cloud: %s: %s: %s", call, response.Status, bytes.TrimSpace(text))
	}
	var out answer
	if err := json.NewDecoder(response.Body).Decode(&out); err != nil {
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

// A remoteError says what the service said, and is what it meant.
type remoteError struct {
	text string
	is   error
}

func (e remoteError) Error() string { return e.text }
func (e remoteError) Unwrap() error { return e.is }
