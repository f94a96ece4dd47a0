// Package testnames has names for tests that compare a check of the library with the API
// server's. The library must not refuse a name that the API server accepts, unless a
// comment of the exported API has the reason.
package testnames

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// All returns names of many shapes, each once: names that programs use, names at the
// limits of lengths, and random ones. A test logs its seed by t.
func All(t testing.TB) []string {
	names := []string{
		// in use
		"cluster.cluster.x-k8s.io", "finalizers.fluxcd.io", "deletion.finalizers.queues.rabbitmq.com", "resources-finalizer.argocd.argoproj.io",
		"kubernetes.io/pvc-protection", "example.com/bucket", "widgets.example.com/Bucket_1.x", "widgets", "kubectl-client-side-apply", "Go-http-client",
		"kubernetes", "orphan", "foregroundDeletion", "before-first-apply", "kubectl", "default", "kube-system",
		// characters and their places
		"", " ", "a", "A", "1", "a1", "1a", "Widgets", "web_sites", "a.b", "a..b", ".a", "a.", "-a", "a-", "_a", "a_", "-", ".", "..", "a-.b", "a.-b",
		"/", "/a", "a/", "a/b", "a/b/c", "a//b", "A/b", "a/B", "Example.com/bucket", "example.com/buck et", "EXAMPLE.COM/BUCKET", "a_b/c", "a.b.c.d/e.f", "a/-", "a/_",
		"a b", " a", "a ", "a\tb", "a\nb", "a\x00b", "a\x7fb", "a\u00a0b", "a%b", "a%2Fb", "a?b", "a#b", "a~b", "a~1b", "a~0b", "a:b", "a@b", "a,b", "a;b", "a=b", `a"b`, `a\b`, "a'b", "a<b", "a*",
		"ä", "日本", "🙂", "a\u200bb", "a\u202eb", "\ufffd", "a\ufffdb", "\xff", "a\xffb", "\xed\xa0\x80",
	}
	for _, n := range []int{52, 53, 63, 64, 119, 120, 128, 129, 244, 245, 253, 254} {
		long := strings.Repeat("a", n)
		dots := strings.Repeat("a", n%10+1) + strings.Repeat(".abcdefghi", n/10)
		names = append(names, long, strings.ToUpper(long), dots[len(dots)-min(len(dots), n):], "example.com/"+long, long+"/bucket", strings.Repeat("ä", n/2))
	}
	seed := rand.Uint64()
	t.Logf("random names of seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 30 {
		var b strings.Builder
		for range 1 + r.IntN(4) {
			parts := []string{"a", "b1", "9", "Z", "-", ".", "_", "/", "example", "io", "~", " ", "ü", "\ufffd", strings.Repeat("x", r.IntN(70))}
			b.WriteString(parts[r.IntN(len(parts))])
		}
		names = append(names, b.String())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Compare compares the two checks of each name. It fails the test if the API server
// accepts a name that the library refuses, unless reason, if it is not nil, returns true. It
// returns the names that only the library accepts.
func Compare(t testing.TB, names []string, server, library func(name string) error, reason func(name string) bool) (lenient []string) {
	t.Helper()
	accepted, refused := 0, 0
	for _, name := range names {
		serverErr, err := server(name), library(name)
		switch {
		case serverErr == nil && err == nil:
			accepted++
		case serverErr != nil && err != nil:
			refused++
		case err == nil:
			lenient = append(lenient, name)
		case reason == nil || !reason(name):
			t.Errorf("%.80q of %d bytes: the API server accepts it, and the library does not: %v", name, len(name), err)
		}
	}
	t.Logf("both accept %d of %d names and refuse %d", accepted, len(names), refused)
	if accepted == 0 || refused == 0 {
		t.Errorf("of %d names both accept %d and refuse %d: this compares nothing", len(names), accepted, refused)
	}
	return lenient
}
