package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// VisibleAfter is the time after which a list shows a snapshot whose creation had no response: the
// timeout of the caller, 15s, and the time in which the service works on a request without a
// client.
const VisibleAfter = 30 * time.Second

// Snapshot is the record of a snapshot.
type Snapshot struct {
	ID    string    `json:"id"`
	Owner string    `json:"owner"`
	Token string    `json:"token"` // the service stores it, and does not compare it
	Time  time.Time `json:"time"`
}

// Service has the methods of a provider that the controller calls.
type Service interface {
	// Create makes a snapshot, and returns it with the ID that the service chose. A second call
	// makes a second snapshot.
	Create(ctx context.Context, snapshot Snapshot) (Snapshot, error)
	// List returns the snapshots of an owner. A snapshot of another one in the response is an error.
	List(ctx context.Context, owner string) ([]Snapshot, error)
	// Delete removes a snapshot, if it exists.
	Delete(ctx context.Context, id string) error
}

// Client is the [Service] of a [Server]. It is safe for concurrent use.
type Client struct {
	url  string
	http http.Client
}

// NewClient returns the client of the service at a URL such as https://store:8054, or of this
// host, such as http://127.0.0.1:8054. It sends no request. The requests have no credentials.
func NewClient(raw string) (*Client, error) {
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.RawQuery != "" {
		return nil, fmt.Errorf("store: the URL %q is not valid: use https://host:port", raw)
	}
	ip, err := netip.ParseAddr(u.Hostname())
	thisHost := u.Hostname() == "localhost" || err == nil && ip.Unmap().IsLoopback()
	if u.Scheme == "http" && !thisHost {
		return nil, fmt.Errorf("store: the URL %q sends plain HTTP to another host: use https://host:port", raw)
	}
	return &Client{
		url: strings.TrimSuffix(raw, "/"),
		http: http.Client{
			// Shorter than the timeout of a reconcile, 15s, so that the status can report a
			// service that hangs.
			Timeout: 10 * time.Second,
			// The service sends no redirects: one comes from another server.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Create implements [Service].
func (c *Client) Create(ctx context.Context, snapshot Snapshot) (Snapshot, error) {
	body, err := json.Marshal(snapshot)
	if err != nil {
		return Snapshot{}, fmt.Errorf("store: encode the snapshot: %w", err)
	}
	var made Snapshot
	if err := c.do(ctx, http.MethodPost, "/snapshots", body, &made); err != nil {
		return Snapshot{}, fmt.Errorf("store: create a snapshot: %w", err)
	}
	return made, nil
}

// List implements [Service].
func (c *Client) List(ctx context.Context, owner string) ([]Snapshot, error) {
	var all []Snapshot
	if err := c.do(ctx, http.MethodGet, "/snapshots?owner="+url.QueryEscape(owner), nil, &all); err != nil {
		return nil, fmt.Errorf("store: list the snapshots: %w", err)
	}
	for _, s := range all {
		if s.Owner != owner { // a proxy can drop the query, and the caller deletes what List returns
			return nil, fmt.Errorf("store: list the snapshots: the response has snapshot %s of the owner %q, and %q was asked for: check the proxies in front of the service", s.ID, s.Owner, owner)
		}
	}
	return all, nil
}

// Delete implements [Service].
func (c *Client) Delete(ctx context.Context, id string) error {
	err := c.do(ctx, http.MethodDelete, "/snapshots/"+url.PathEscape(id), nil, nil)
	if status, ok := errors.AsType[statusError](err); ok && status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("store: delete snapshot %s: %w", id, err)
	}
	return nil
}

// statusError is a response with an unexpected status.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("the service returned %d %s", int(e), http.StatusText(int(e)))
}

// do sends a request, and decodes the body of the response into result, unless that is nil.
func (c *Client) do(ctx context.Context, method, path string, body []byte, result any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// Addresses and ports differ from try to try. In a condition, each difference would
		// cause a write.
		if u, ok := errors.AsType[*url.Error](err); ok && u.Timeout() {
			return context.DeadlineExceeded
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errors.New("no response; check that the service runs and is reachable")
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return errors.New("the response ended early")
	case resp.StatusCode >= 300:
		return statusError(resp.StatusCode)
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(data, result); err != nil {
		return fmt.Errorf("decode the response: %w", err)
	}
	return nil
}
