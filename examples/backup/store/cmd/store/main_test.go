package main

import (
	"context"
	"strings"
	"testing"
)

func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for listen, ok := range map[string]bool{
		"127.0.0.1:0": true, "localhost:0": true, ":0": false, "0.0.0.0:0": false, "[::]:0": false, "10.0.0.1:0": false,
	} {
		err := serve(ctx, listen)
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "is not a loopback address") {
			t.Errorf("serve(%q) = %v", listen, err)
		}
	}
}
