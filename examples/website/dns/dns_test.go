package dns_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/examples/website/dns"
)

func TestClient(t *testing.T) {
	service := new(dns.Server)
	server := httptest.NewServer(service)
	defer server.Close()
	client, err := dns.NewClient(server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, host := range []string{"a.example.com", "b.example.com", "b.example.com"} {
		if err := client.Put(ctx, "uid/1", host); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]string{"uid/1": "b.example.com"}, service.Records()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	service.Fail(http.StatusServiceUnavailable)
	if err := client.Delete(ctx, "uid/1"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("Delete of a failing service = %v, want its status", err)
	}
	service.Fail(0)
	for range 2 { // the second finds none
		if err := client.Delete(ctx, "uid/1"); err != nil {
			t.Error(err)
		}
	}
	if len(service.Records()) != 0 {
		t.Errorf("records = %v, want none", service.Records())
	}

	service.Slow(time.Hour)
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := client.Put(short, "a", "a.example.com"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Put without a response = %v, want the end of the context", err)
	}
}

func TestClientErrors(t *testing.T) {
	for _, raw := range []string{
		"", "localhost:8053", "ftp://dns", "http://", "https://:8053", "https://dns?x=1", "https://a b",
		"http://dns:8053", "http://10.0.0.1:8053", "http://0.0.0.0:8053", "http://[::]", "http://localhost.example.com", // plain HTTP to other hosts
	} {
		if _, err := dns.NewClient(raw); err == nil || !strings.Contains(err.Error(), "use https://host:port") {
			t.Errorf("NewClient(%q) = %v, want an error with the cure", raw, err)
		}
	}
	for _, raw := range []string{"https://dns:8053", "http://localhost:8053", "http://127.0.0.1:8053", "http://[::1]:8053"} {
		if _, err := dns.NewClient(raw); err != nil {
			t.Errorf("NewClient(%q) = %v", raw, err)
		}
	}
	other := httptest.NewServer(http.RedirectHandler("http://example.com/", http.StatusFound))
	client, err := dns.NewClient(other.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Put(t.Context(), "a", "a.example.com"); err == nil || !strings.Contains(err.Error(), "302") {
		t.Errorf("Put with a redirect = %v, want its status", err)
	}
	other.Close()
	first, second := client.Put(t.Context(), "a", "a.example.com"), client.Put(t.Context(), "a", "a.example.com")
	if first == nil || second == nil || first.Error() != second.Error() || strings.Contains(first.Error(), "127.0.0.1") {
		t.Errorf("errors of an absent service:\n%v\n%v\nwant the same text without the address", first, second)
	}
}
