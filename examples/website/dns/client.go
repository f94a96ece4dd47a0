package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/controllerkit/controllerkit/preview"
)

// Service has the methods of a provider that the controller calls. Both calls are
// idempotent: owner is the key of a record. A call must have no effect after it has returned, also
// with an error: for a provider whose requests can take effect later, use package external.
type Service interface {
	// Put makes the record of owner point to host.
	Put(ctx context.Context, owner, host string) error
	// Delete removes the record of owner, if it exists.
	Delete(ctx context.Context, owner string) error
}

// Client is the [Service] of a [Server]. It is safe for concurrent use.
type Client struct {
	url  string
	http http.Client
}

// NewClient returns the client of the service at a URL such as https://dns:8053, or of this
// host, such as http://127.0.0.1:8053. It sends no request. The requests have no credentials.
func NewClient(raw string) (*Client, error) {
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.RawQuery != "" {
		return nil, fmt.Errorf("dns: the URL %q is not valid: use https://host:port", raw)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (err != nil || !ip.Unmap().IsLoopback()) {
		return nil, fmt.Errorf("dns: the URL %q sends plain HTTP to another host: use https://host:port", raw)
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

// Put implements [Service].
func (c *Client) Put(ctx context.Context, owner, host string) error {
	return c.do(ctx, http.MethodPut, owner, host)
}

// Delete implements [Service].
func (c *Client) Delete(ctx context.Context, owner string) error {
	return c.do(ctx, http.MethodDelete, owner, "")
}

func (c *Client) do(ctx context.Context, method, owner, host string) error {
	if preview.Skip(ctx, "%s the DNS record of %s", strings.ToLower(method), owner) {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+"/records/"+url.PathEscape(owner), strings.NewReader(host))
	if err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// Addresses and ports differ from try to try. In a condition, each difference
		// would cause a write.
		if u, ok := errors.AsType[*url.Error](err); ok && u.Timeout() {
			err = context.DeadlineExceeded
		} else if ctx.Err() == nil {
			err = errors.New("no response; check that the service runs and is reachable")
		}
		return fmt.Errorf("dns: %s the record: %w", strings.ToLower(method), err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16)) // so that the connection is used again
	if resp.StatusCode >= 300 && (method != http.MethodDelete || resp.StatusCode != http.StatusNotFound) {
		return fmt.Errorf("dns: %s the record: the service returned %d %s", strings.ToLower(method), resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return nil
}
