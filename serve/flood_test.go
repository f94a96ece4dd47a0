package serve_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestFlood sends 10,000 different tokens a minute, from one address, from one network
// and from many addresses, while a user whose request was allowed goes on. It proves SV2
// and SV3.
func TestFlood(t *testing.T) {
	for _, tc := range []struct {
		name string
		addr func(i int) string
		most int64 // reviews of tokens
	}{
		{"one address", func(i int) string { return fmt.Sprintf("192.0.2.7:%d", i) }, 10 + 2*72},
		{"one network", func(i int) string { return fmt.Sprintf("[2001:db8::%x]:1", i) }, 10 + 2*72},
		{"many addresses", func(i int) string { return fmt.Sprintf("10.0.%d.%d:1", i/250, i%250) }, 20 + 10*72},
		{"no address", func(int) string { return "pipe" }, 10 + 2*72},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &reviewer{allow: []string{"/metrics"}}
				h := api.guard().Handler(http.HandlerFunc(served))
				if got := get(t, h, "good-1", "/metrics", anAddr); got != 200 {
					t.Fatalf("the code is %d, want 200", got)
				}
				own := api.tokens.Load()
				codes := map[int]int{}
				for i := range 12_000 {
					codes[get(t, h, fmt.Sprintf("bad-%d", i), "/metrics", tc.addr(i))]++
					if i%10 == 0 { // just after the last review that was possible
						if got := get(t, h, "good-1", "/metrics", tc.addr(i)); got != 200 {
							t.Errorf("the code is %d for the allowed request after %d others, want 200", got, i)
						}
					}
					time.Sleep(time.Minute / 10_000)
				}
				own++ // the good token was reviewed again after a minute
				if n := api.tokens.Load() - own; n > tc.most || n < tc.most-20 {
					t.Errorf("the API server reviewed %d tokens, want at most %d and hardly fewer", n, tc.most)
				}
				if len(codes) != 2 || codes[401] == 0 || codes[429] == 0 {
					t.Errorf("the responses are %v, want 401 and 429", codes)
				}
			})
		})
	}
}

// TestNewTokenInAFlood holds that new tokens from other addresses are reviewed at once while
// one address sends many. It proves SV2.
func TestNewTokenInAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &reviewer{allow: []string{"/metrics"}}
		h := api.guard().Handler(http.HandlerFunc(served))
		for i := range 3000 {
			get(t, h, fmt.Sprintf("bad-%d", i), "/metrics", "192.0.2.7:1")
			if i%37 == 0 {
				if got := get(t, h, fmt.Sprintf("new-%d", i), "/metrics", fmt.Sprintf("10.0.%d.1:1", i/37)); got != 401 {
					t.Errorf("the code is %d for the first token of an address, want that of its review, 401", got)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// TestManyHang holds that a bounded number of requests waits for an API server that does
// not respond, and that the others get a response at once. It proves SV2 and SV3.
func TestManyHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var paths []string
		for i := range 200 {
			paths = append(paths, fmt.Sprintf("/known-%d", i))
		}
		api := &reviewer{allow: paths}
		h := api.guard().Handler(http.HandlerFunc(served))
		for i, path := range paths {
			if got := get(t, h, "good-1", path, fmt.Sprintf("10.0.0.%d:1", i)); got != 200 {
				t.Fatalf("the code is %d, want 200", got)
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		api.before = func(context.Context) error { <-release; return nil }
		before := api.tokens.Load()
		codes := make(chan int, 400)
		request := func(token, path, addr string) {
			go func() { codes <- get(t, h, token, path, addr) }()
			time.Sleep(100 * time.Millisecond)
		}
		for i := range 100 {
			request(fmt.Sprintf("bad-%d", i), "/metrics", fmt.Sprintf("10.0.1.%d:1", i))
		}
		if n := api.tokens.Load() - before; n != 32 || len(codes) != 68 {
			t.Errorf("%d new requests wait and %d got a response, want 32 and 68", n, len(codes))
		}
		for _, path := range paths {
			request("good-1", path, anAddr)
		}
		if n := api.tokens.Load() - before; n != 32+64 || len(codes) != 68+136 {
			t.Errorf("%d requests wait and %d got a response, want 96 and 204", n, len(codes))
		}
		close(release)
		synctest.Wait()
		sum := map[int]int{}
		for range 300 {
			sum[<-codes]++
		}
		if sum[200] != 200 || sum[401] != 32 || sum[429] != 68 {
			t.Errorf("the responses are %v, want 200 times 200, 32 times 401 and 68 times 429", sum)
		}
	})
}

// TestMemory sends 20,000 tokens of 8 KiB, all of which are reviewed and some of which are
// allowed. It proves SV2.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &reviewer{}
		guard := api.guard()
		h := guard.Handler(http.HandlerFunc(served))
		long := strings.Repeat("x", 8<<10)
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		for i := range 20_000 {
			get(t, h, fmt.Sprint(long, i), "/metrics", fmt.Sprintf("10.%d.%d.1:1", i/250, i%250))
			time.Sleep(100 * time.Millisecond)
		}
		if n := api.tokens.Load(); n != 20_000 {
			t.Fatalf("%d reviews, want all: the test proves nothing", n)
		}
		if grown := int64(heap()) - int64(before); grown > 2<<20 {
			t.Errorf("the Guard keeps %d bytes, want at most 2 MiB", grown)
		}
		runtime.KeepAlive(guard)
	})
}
