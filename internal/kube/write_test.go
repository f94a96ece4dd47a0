package kube_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/kube"
)

func TestIsWrite(t *testing.T) {
	for _, tt := range []struct {
		methods, query, header string
		want                   bool
	}{
		{methods: "GET HEAD OPTIONS"},
		{methods: "POST PUT PATCH DELETE CONNECT BREW", want: true},
		{methods: "POST", query: "?watch=true", want: true},
		{methods: "GET HEAD", header: "Upgrade", want: true},
		{methods: "GET", header: "sec-websocket-protocol", want: true},
		{methods: "GET", header: "X-Stream-Protocol-Version", want: true},
		{methods: "GET", header: "Connection"},
		{methods: "GET", header: "Upgrade", query: "?watch=1"},
		{methods: "GET", header: "Upgrade", query: "?watch=false", want: true},
	} {
		for method := range strings.FieldsSeq(tt.methods) {
			req := httptest.NewRequest(method, "/api/v1/namespaces/a/pods/b/exec"+tt.query, nil)
			if tt.header != "" {
				req.Header.Set(tt.header, "x")
			}
			if got := kube.IsWrite(req); got != tt.want {
				t.Errorf("IsWrite(%s%s with %q) = %t, want %t", method, tt.query, tt.header, got, tt.want)
			}
		}
	}
	if kube.IsWrite(&http.Request{}) {
		t.Error("IsWrite of the zero Request is true, want false")
	}
}
