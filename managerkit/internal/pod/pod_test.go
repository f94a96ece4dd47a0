package pod_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/managerkit/internal/pod"
)

// TestNamespace: the file has one namespace, and its absence is a class of error.
func TestNamespace(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "namespace")
	if _, err := pod.Namespace(file); !errors.Is(err, pod.ErrOutside) {
		t.Errorf("without a file: %v", err)
	}
	if _, err := pod.Namespace(dir); err == nil || errors.Is(err, pod.ErrOutside) {
		t.Errorf("a folder: %v", err)
	}
	for content, want := range map[string]string{"shop": "shop", "shop\n": "shop", "": "", "a b": "", strings.Repeat("a", 64): ""} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := pod.Namespace(file)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", content, got, err, want)
		}
	}
}
