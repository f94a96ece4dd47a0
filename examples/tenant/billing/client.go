package billing

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode"
)

// ErrClosed is returned by [Client.Open] for a closed key. The service opens no
// other account with that key.
var ErrClosed = errors.New("billing: the account is permanently closed")

// Client is a client of a billing service. It is safe for concurrent use.
//
// Its error texts depend only on the kind of failure. They contain no source
// port, time or attempt number, so a condition can hold them: a text that differs
// from attempt to attempt would cause a status write for each attempt.
type Client struct {
	// URL is the address of the service, for example http://127.0.0.1:8090.
	URL string

	// Transport sends the requests. nil means http.DefaultTransport.
	Transport http.RoundTripper

	// Timeout bounds one request. 0 means 5s.
	Timeout time.Duration
}

// Open opens the account of key. If the account is open already, Open returns it.
func (c *Client) Open(ctx context.Context, key, tenant, plan string) (Account, error) {
	body, err := json.Marshal(map[string]string{"tenant": tenant, "plan": plan})
	if err != nil {
		return Account{}, fmt.Errorf("billing: open: %w", err)
	}
	var a Account
	err = c.do(ctx, "open", http.MethodPost, "", key, body, &a)
	if err == nil && !validID(a.ID) {
		return Account{}, fmt.Errorf("billing: open: the account id %q in the response is not valid; check that the URL is that of a billing service", oneLine(a.ID))
	}
	return a, err
}

// Close permanently closes the account of key. A key without an account is not an
// error.
func (c *Client) Close(ctx context.Context, key string) error {
	return c.do(ctx, "close", http.MethodDelete, url.Values{"key": {key}}.Encode(), "", nil, nil)
}

// Accounts returns all open accounts.
func (c *Client) Accounts(ctx context.Context) ([]Account, error) {
	var list []Account
	err := c.do(ctx, "list", http.MethodGet, "", "", nil, &list)
	return list, err
}

// Check returns an error unless raw can be the URL of a [Client].
func Check(raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return fmt.Errorf("billing: the URL is not valid: %w", errors.Unwrap(err))
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" {
		return errors.New("billing: the URL is not valid: write http://host:port")
	}
	return nil
}

// CheckRemote returns an error unless raw can be the URL of a [Client], and is that of this
// host or uses TLS.
func CheckRemote(raw string) error {
	if err := Check(raw); err != nil {
		return err
	}
	u, err := url.Parse(raw)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Scheme == "https" || u.Hostname() == "localhost" || err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return errors.New("billing: the URL sends plain HTTP to another host: write https://host:port")
}

func (c *Client) do(ctx context.Context, what, method, query, key string, body []byte, into any) error {
	if err := Check(c.URL); err != nil {
		return err
	}
	timeout := cmp.Or(c.Timeout, 5*time.Second)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	target := strings.TrimSuffix(c.URL, "/") + "/accounts"
	if query != "" {
		target += "?" + query
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("billing: %s: %w", what, err)
	}
	if key != "" {
		// If a kept-alive connection is dead, net/http retries a request with this
		// header on a new connection. The key makes that retry safe.
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("Content-Type", "application/json")
	}
	// The service sends no redirects. A redirect comes from another server and is
	// an error.
	client := http.Client{
		Transport:     c.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("billing: %s: %w", what, transportError(err, timeout))
	}
	defer func() { _ = resp.Body.Close() }() // the body has been read, or the read failed
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<22))
	if err != nil {
		return fmt.Errorf("billing: %s: %w", what, transportError(err, timeout))
	}
	switch {
	case resp.StatusCode == http.StatusGone:
		return fmt.Errorf("%w; to open another account, delete the tenant and create it again", ErrClosed)
	case resp.StatusCode >= 300:
		// The text of the status line is not used: it can have any length and any
		// characters.
		return fmt.Errorf("billing: %s: the service returned %d %s%s", what, resp.StatusCode, http.StatusText(resp.StatusCode), reason(data))
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("billing: %s: decode the response: %w; check that the URL is that of a billing service", what, err)
	}
	return nil
}

// reason returns the error of a response with a leading colon, "" if there is none.
func reason(data []byte) string {
	var body struct{ Error string }
	if json.Unmarshal(data, &body) != nil || body.Error == "" {
		return ""
	}
	return ": " + oneLine(body.Error)
}

// maxText is the maximum number of bytes of the service's text in an error or a
// condition.
const maxText = 256

// oneLine returns at most maxText bytes of the service's text, without line breaks
// and control characters. With them the service could control a terminal or forge
// log lines.
func oneLine(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), 4*maxText)], "?")
	text = strings.Join(strings.Fields(text), " ")
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "")
}

// validID reports whether a Tenant's status can hold id.
func validID(id string) bool {
	return id != "" && len(id) <= 253 && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

// transportError describes a request without a complete response. It omits the
// addresses, which differ from attempt to attempt.
func transportError(err error, timeout time.Duration) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no response within %v: %w; check that the service runs and is reachable", timeout, context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return context.Canceled
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w; check that the service runs and is reachable", op.Op, op.Err)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	// The error of a malformed response quotes the response.
	return fmt.Errorf("%s; check that the service runs and is reachable", oneLine(err.Error()))
}
