package store_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/examples/backup/store"
)

func TestClient(t *testing.T) {
	service := new(store.Server)
	server := httptest.NewServer(service)
	defer server.Close()
	client, err := store.NewClient(server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	var made []store.Snapshot
	for _, s := range []store.Snapshot{
		{Owner: "uid-1", Token: "a", Time: noon}, {Owner: "uid-1", Token: "a", Time: noon}, {Owner: "uid-2", Token: "b", Time: noon},
	} {
		snapshot, err := client.Create(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, snapshot)
	}
	got, err := client.List(ctx, "uid-1")
	if diff := cmp.Diff(made[:2], got); err != nil || diff != "" || got[0].ID == got[1].ID {
		t.Errorf("List() = %v, error %v, want two of one token (-want +got):\n%s", got, err, diff)
	}
	service.Fail(http.StatusServiceUnavailable)
	if err := client.Delete(ctx, made[0].ID); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("Delete of a failing service = %v, want its status", err)
	}
	service.Fail(0)
	for range 2 { // the second finds none
		if err := client.Delete(ctx, made[0].ID); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(made[1:], service.Snapshots("")); diff != "" {
		t.Errorf("snapshots (-want +got):\n%s", diff)
	}
	if _, err := client.Create(ctx, store.Snapshot{Owner: "uid-1"}); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("Create without a token = %v, want 400", err)
	}
}

func TestClientErrors(t *testing.T) {
	for _, raw := range []string{
		"", "localhost:8054", "ftp://store", "http://", "https://:8054", "https://store?x=1", "https://a b",
		"http://store:8054", "http://10.0.0.1:8054", "http://0.0.0.0:8054", "http://localhost.example.com", // plain HTTP to other hosts
	} {
		if _, err := store.NewClient(raw); err == nil || !strings.Contains(err.Error(), "use https://host:port") {
			t.Errorf("NewClient(%q) = %v, want an error with the cure", raw, err)
		}
	}
	for _, raw := range []string{"https://store:8054", "http://localhost:8054", "http://[::1]:8054"} {
		if _, err := store.NewClient(raw); err != nil {
			t.Errorf("NewClient(%q) = %v", raw, err)
		}
	}
	other := httptest.NewServer(http.RedirectHandler("http://example.com/", http.StatusFound))
	client, err := store.NewClient(other.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.List(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "302") {
		t.Errorf("List with a redirect = %v, want its status", err)
	}
	other.Close()
	_, first := client.List(t.Context(), "a")
	_, second := client.List(t.Context(), "a")
	if first == nil || second == nil || first.Error() != second.Error() || strings.Contains(first.Error(), "127.0.0.1") {
		t.Errorf("errors of an absent service:\n%v\n%v\nwant the same text without the address", first, second)
	}
}
