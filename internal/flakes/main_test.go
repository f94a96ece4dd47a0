package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	first = `go: downloading example.com/x v1.0.0
{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"a line of TestMain\n"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA/sub","Output":"    a_test.go:1: the cause\n"}
{"Action":"output","Package":"p","Test":"TestA/sub","Output":"    --- FAIL: TestA/sub (1.50s)\n"}
{"Action":"fail","Package":"p","Test":"TestA/sub","Elapsed":1.5}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (2.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":2}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: a log\n"}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":3}
{"Action":"output","Package":"p","Test":"TestD","Output":"    d_test.go:1: a log\n"}
{"Action":"output","Package":"p","Test":"TestD","Output":"    d_test.go:2: it needs Kubernetes 1.36\n"}
{"Action":"output","Package":"p","Test":"TestD","Output":"--- SKIP: TestD (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestD","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestE/sub","Output":"        e_test.go:2: it needs Kubernetes 1.36\n"}
{"Action":"skip","Package":"p","Test":"TestE/sub","Elapsed":0}
{"Action":"skip","Package":"p","Test":"TestF","Elapsed":0}
{"Action":"skip","Package":"without tests","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestC","Output":"panic: boom\n"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t6.000s\n"}
{"Action":"fail","Package":"p","Elapsed":6}
{"ImportPath":"q","Action":"build-output","Output":"q/q.go:1:1: syntax error\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"output","Package":"r","Output":"PASS\n"}
{"Action":"output","Package":"r","Output":"ok  \tr\t1.000s\n"}
{"Action":"pass","Package":"r","Elapsed":1}
`
	second = `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":1}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":4}
{"Action":"pass","Package":"p","Elapsed":5}
{"Action":"fail","Package":"r","Elapsed":1}
`
)

func TestShow(t *testing.T) {
	const want = `go: downloading example.com/x v1.0.0
    a_test.go:1: the cause
    --- FAIL: TestA/sub (1.50s)
--- FAIL: TestA (2.00s)
panic: boom
a line of TestMain
FAIL
FAIL	p	6.000s
q/q.go:1:1: syntax error
ok  	r	1.000s
skipped 1: it gives no reason (p TestF)
skipped 2: it needs Kubernetes 1.36 (p TestD, p TestE/sub)
`
	var got strings.Builder
	if err := show(strings.NewReader(first), &got, false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("show (-want +got):\n%s", diff)
	}
	got.Reset()
	if err := show(strings.NewReader(first), &got, true); err != nil || !strings.Contains(got.String(), "b_test.go:1: a log\n") {
		t.Errorf("with -v: %v, the log of a passed test is missing:\n%s", err, got.String())
	}
	if n := strings.Count(got.String(), "the cause"); n != 1 || !strings.HasSuffix(got.String(), "(p TestD, p TestE/sub)\n") {
		t.Errorf("with -v: the log of a failed test appears %d times, want once, before the skipped tests:\n%s", n, got.String())
	}
}

// TestSummary: a line stays short, however many tests have its reason.
func TestSummary(t *testing.T) {
	const want = "skipped 5: why (p A, p B, p C and 2 more)\n"
	if got := summary("why", []id{{"p", "A"}, {"p", "B"}, {"p", "C"}, {"p", "D"}, {"p", "E"}}); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRecord(t *testing.T) {
	folder := t.TempDir()
	var r record
	if err := r.readAll(folder); err == nil || !strings.Contains(err.Error(), folder+" has no .json file") {
		t.Errorf("an empty folder: got %v", err)
	}
	for name, text := range map[string]string{"1/root.json": first, "2/root.json": second, "2/log.txt": first} {
		file := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.readAll(folder); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := r.print(&got); err != nil {
		t.Fatal(err)
	}
	const want = `2 files of go test -json
failed:
  p: failed 1, passed 1
  p TestA: failed 1, passed 1
  p TestA/sub: failed 1, passed 0
  r: failed 1, passed 1
failed and passed:
  p: failed 1, passed 1
  p TestA: failed 1, passed 1
  r: failed 1, passed 1
slowest tests:
      4.00s p TestB
      2.00s p TestA
slowest packages:
      6.00s p
      1.00s r
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("print (-want +got):\n%s", diff)
	}
}
