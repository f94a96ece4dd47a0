package localserver

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A released version is installed once, by the go command of PATH.
func TestInstall(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the go command of this test is a shell script")
	}
	path, cache := t.TempDir(), t.TempDir()
	calls := filepath.Join(path, "calls")
	script := "#!/bin/sh\necho \"$@\" >>" + calls + "\ncase \"$*\" in *v0.0.9) echo no such version; exit 1;; esac\necho binary >\"$GOBIN/controlplane\"\n"
	if err := os.WriteFile(filepath.Join(path, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path+string(os.PathListSeparator)+os.Getenv("PATH"))
	for range 2 {
		bin, err := install(t.Context(), "v1.2.3", cache)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(bin); err != nil || string(data) != "binary\n" || bin != filepath.Join(cache, "controllerkit", "v1.2.3", "controlplane") {
			t.Errorf("%s has %q, %v", bin, data, err)
		}
	}
	if data, err := os.ReadFile(calls); err != nil || string(data) != "install -ldflags=-s -w "+module+"/controlplane@v1.2.3\n" {
		t.Errorf("the go command was called with %q, %v, want one call", data, err)
	}
	if _, err := install(t.Context(), "v0.0.9", cache); err == nil || !strings.Contains(err.Error(), "no such version") {
		t.Errorf("install() = %v, want the output of the go command", err)
	}
	for _, version := range []string{"", "(devel)"} {
		if _, err := install(t.Context(), version, cache); err == nil || !strings.Contains(err.Error(), "not built with a released version") {
			t.Errorf("install(%q) = %v", version, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(cache, "controllerkit", "*", "install-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A waiting context notes that somebody waits for its end.
type waiting struct {
	context.Context
	asked chan struct{}
}

func (w *waiting) Done() <-chan struct{} {
	select {
	case w.asked <- struct{}{}:
	default:
	}
	return w.Context.Done()
}

// Calls at once install once: of this process, and of another one, which holds the lock of the file.
func TestInstallAtOnce(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the go command of this test is a shell script")
	}
	path, cache := t.TempDir(), t.TempDir()
	t.Chdir(path)
	if out, err := exec.Command("mkfifo", "began", "end").CombinedOutput(); err != nil {
		t.Skipf("mkfifo: %v %s", err, out)
	}
	script := "#!/bin/sh\necho call >>calls\ncase $(cat calls) in *call*call*) echo a second call; exit 1;; esac\necho >began\ncat end >\"$GOBIN/controlplane\"\n"
	if err := os.WriteFile("go", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path+string(os.PathListSeparator)+os.Getenv("PATH"))
	done := make(chan error, 2)
	installs := func(ctx context.Context, version string) {
		_, err := install(ctx, version, cache)
		done <- err
	}
	go installs(t.Context(), "v1.2.3")
	if _, err := os.ReadFile("began"); err != nil {
		t.Fatal(err)
	}
	waits := &waiting{t.Context(), make(chan struct{}, 9)}
	go installs(waits, "v1.2.3")
	<-waits.asked
	if err := os.WriteFile("end", []byte("binary\n"), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}

	dir := filepath.Join(cache, "controllerkit", "v2.0.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	other, err := os.Create(filepath.Join(dir, "install.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if !tryLock(other) {
		t.Fatal("a new file is locked")
	}
	another, err := os.Open(other.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer another.Close()
	if tryLock(another) {
		t.Error("a locked file was locked again")
	}
	go installs(t.Context(), "v2.0.0")
	// The other process ends after it has installed.
	if err := os.WriteFile(filepath.Join(dir, "controlplane"), []byte("binary\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	other.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The error of an installation that was stopped has the cause of its context, before and while the go command runs.
func TestInstallStopped(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the go command of this test is a shell script")
	}
	path, cache := t.TempDir(), t.TempDir()
	began := filepath.Join(path, "began")
	if out, err := exec.Command("mkfifo", began).CombinedOutput(); err != nil {
		t.Skipf("mkfifo: %v %s", err, out)
	}
	script := "#!/bin/sh\necho one >" + began + "\nexec sleep 600\n"
	if err := os.WriteFile(filepath.Join(path, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path+string(os.PathListSeparator)+os.Getenv("PATH"))
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("the -timeout of go test is nearly over")
	done := make(chan error, 2)
	for range 2 { // one waits for the other
		go func() {
			_, err := install(ctx, "v1.2.3", cache)
			done <- err
		}()
	}
	if _, err := os.ReadFile(began); err != nil {
		t.Fatal(err)
	}
	cancel(over)
	for range 2 {
		if err := <-done; !errors.Is(err, over) || strings.Contains(err.Error(), "killed") {
			t.Errorf("install() = %v, want the cause of its context", err)
		}
	}
}

// A test has no list of its modules, so the go command of PATH is asked.
func TestVersion(t *testing.T) {
	if got := version(t.Context()); got != "" {
		t.Errorf("version() in this repository = %q, want none", got)
	}
	if runtime.GOOS == "windows" {
		t.Skip("the go command of this test is a shell script")
	}
	path := t.TempDir()
	t.Setenv("PATH", path)
	if got := version(t.Context()); got != "" {
		t.Errorf("version() without a go command = %q, want none", got)
	}
	script := "#!/bin/sh\ncase \"$*\" in 'list -m -f {{if not .Replace}}{{.Version}}{{end}} " + module + "') echo v1.2.3;; esac\n"
	if err := os.WriteFile(filepath.Join(path, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := version(t.Context()); got != "v1.2.3" {
		t.Errorf("version() = %q, want that of go list", got)
	}
}

// The variable precedes PATH, and PATH the installation.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "controlplane")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv(Variable, "")
	if got, err := Find(t.Context()); err != nil || got != bin {
		t.Errorf("Find() = %s, %v, want %s of PATH", got, err, bin)
	}
	t.Setenv(Variable, filepath.Join(dir, "missing"))
	if _, err := Find(t.Context()); err == nil || !strings.Contains(err.Error(), "CONTROLPLANE is not the path of a program: exec: \""+filepath.Join(dir, "missing")) {
		t.Errorf("Find() = %v, want an error about the variable", err)
	}
	t.Chdir(dir) // outside of the repository
	t.Setenv("PATH", t.TempDir())
	t.Setenv(Variable, "")
	if _, err := Find(t.Context()); err == nil || !strings.Contains(err.Error(), "no API server: install one by go install") {
		t.Errorf("Find() = %v, want the ways to get a server", err)
	}
}
