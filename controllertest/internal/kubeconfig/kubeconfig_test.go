package kubeconfig

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// TestWithoutFolder: a file that cannot be written is an error, nothing is left
// of the attempt, and the next call tries again.
func TestWithoutFolder(t *testing.T) {
	through, err := fault.New(&rest.Config{Host: "https://127.0.0.1:1"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer through.Kill()
	folder := filepath.Join(t.TempDir(), "absent")
	t.Setenv("TMPDIR", folder)
	k := &File{Through: through, Namespace: "ns"}
	defer k.Close()
	file, err := k.Path()
	if file != "" || err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("without a folder the file is %q, %v", file, err)
	}
	if k.server != nil {
		t.Error("a server is left")
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if file, err = k.Path(); err != nil || filepath.Dir(filepath.Dir(file)) != folder {
		t.Errorf("with a folder the file is %q, %v", file, err)
	}
	k.Close()
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

// TestReadable: a program that takes a file gets JSON, unless it cannot read it.
func TestReadable(t *testing.T) {
	const protobuf, table = "application/vnd.kubernetes.protobuf", "application/json;as=Table;v=v1;g=meta.k8s.io"
	for _, test := range []struct{ accept, want []string }{
		{nil, nil},
		{[]string{"application/json"}, []string{"application/json"}},
		{[]string{protobuf + ",application/json"}, []string{"application/json"}},
		{[]string{protobuf + ";stream=watch, application/json, */*"}, []string{"application/json,*/*"}},
		{[]string{protobuf, "application/json"}, []string{"application/json"}},
		{[]string{"application/cbor;q=1,application/json;q=0.9"}, []string{"application/json;q=0.9"}},
		{[]string{table + "," + protobuf}, []string{table}},
		{[]string{protobuf}, []string{protobuf}},
	} {
		if got := readable(test.accept); !slices.Equal(got, test.want) {
			t.Errorf("readable(%q) = %q, want %q", test.accept, got, test.want)
		}
	}
}
