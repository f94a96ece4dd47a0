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
	"net/url"
	"os"
	"strings"
	"time"
	"unicode"
)

// ErrClosed is returned by [Client.Open] for a key that was closed: no
// account will ever be opened with it again.
var ErrClosed = errors.New("billing: the account was closed for good")

// Client speaks to a billing service. It is safe for concurrent use.
//
// The text of its errors depends on what went wrong alone: no source port, no
// time, no attempt. It can stand in a condition, where a text that changed
// with every attempt would be a write with every attempt.
type Client struct {
	// URL is where the service is, for example http://127.0.0.1:8090.
	URL string

	// Transport carries the requests. nil means http.DefaultTransport.
	Transport http.RoundTripper

	// Timeout bounds one request. 0 means 5s.
	Timeout time.Duration
}

// Open opens the account of key, or returns the one that is open already.
func (c *Client) Open(ctx context.Context, key, tenant, plan string) (Account, error) {
	body, err := json.Marshal(map[string]string{"tenant": tenant, "plan": plan})
	if err != nil {
		return Account{}, fmt.Errorf("billing: open: %w", err)
	}
	var a Account
	err = c.do(ctx, "open", http.MethodPost, "", key, body, &a)
	if err == nil && !validID(a.ID) {
		return Account{}, fmt.Errorf("billing: open: the response has the account id %q; check that the URL is a billing service's", oneLine(a.ID))
	}
	return a, err
}

// Close closes the account of key for good. It is no error if there is none.
func (c *Client) Close(ctx context.Context, key string) error {
	return c.do(ctx, "close", http.MethodDelete, url.Values{"key": {key}}.Encode(), "", nil, nil)
}

// Accounts returns all open accounts.
func (c *Client) Accounts(ctx context.Context) ([]Account, error) {
	var list []Account
	err := c.do(ctx, "list", http.MethodGet, "", "", nil, &list)
	return list, err
}

// Check reports whether raw can be the URL of a [Client].
func Check(raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return fmt.Errorf("billing: the URL cannot be read: %w", errors.Unwrap(err))
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" {
		return errors.New("billing: the URL must be like http://host:port")
	}
	return nil
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
		// net/http repeats a request with this header on a fresh connection
		// when a kept one turns out dead, which the key makes safe.
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("Content-Type", "application/json")
	}
	// No redirects: the service has none, and whoever answers with one is
	// not it.
	client := http.Client{
		Transport:     c.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("billing: %s: %w", what, unanswered(err, timeout))
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end, or is given up
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<22))
	if err != nil {
		return fmt.Errorf("billing: %s: %w", what, unanswered(err, timeout))
	}
	switch {
	case resp.StatusCode == http.StatusGone:
		return fmt.Errorf("%w; delete the tenant and create it anew to get another", ErrClosed)
	case resp.StatusCode >= 300:
		// The status line's own text has any length and any characters.
		return fmt.Errorf("billing: %s: the service answered %d %s%s", what, resp.StatusCode, http.StatusText(resp.StatusCode), reason(data))
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("billing: %s: the answer cannot be read; check that the URL is a billing service's: %w", what, err)
	}
	return nil
}

// reason returns the error in a response, to be appended to a line.
func reason(data []byte) string {
	var body struct{ Error string }
	if json.Unmarshal(data, &body) != nil || body.Error == "" {
		return ""
	}
	return ": " + oneLine(body.Error)
}

// maxText bounds in bytes the text of the service in errors and conditions.
const maxText = 256

// oneLine returns at most maxText bytes of text from the service without line breaks
// or control characters, which would let the service write to a terminal or forge
// lines of a log.
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

// validID reports whether id can stand in a Tenant's status.
func validID(id string) bool {
	return id != "" && len(id) <= 253 && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

// unanswered says what became of a request that got no answer, without the
// addresses in it that differ from attempt to attempt.
func unanswered(err error, timeout time.Duration) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no answer within %v; check that the service runs and is reachable: %w", timeout, context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return context.Canceled
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w; check that the service runs and is reachable", op.Op, op.Err)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	// The text of an error about a malformed response quotes the response.
	return fmt.Errorf("%s; check that the service runs and is reachable", oneLine(err.Error()))
}
