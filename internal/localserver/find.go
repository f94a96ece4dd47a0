package localserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Variable is the environment variable with the path of the controlplane binary.
const Variable = "CONTROLPLANE"

const module = "github.com/controllerkit/controllerkit"

// Find returns the path of the controlplane binary: from [Variable], from PATH, or from
// this repository. If there is none, it installs the version of the module in this program
// into the user's cache, which takes minutes the first time.
func Find(ctx context.Context) (string, error) {
	if name := os.Getenv(Variable); name != "" {
		bin, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("%s is not the path of a program: %w", Variable, err)
		}
		return bin, nil
	}
	if bin, err := exec.LookPath("controlplane"); err == nil {
		return bin, nil
	}
	for dir, err := os.Getwd(); err == nil; dir = filepath.Dir(dir) {
		if data, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil {
			if bin := filepath.Join(dir, "bin", "controlplane"); strings.HasPrefix(string(data), "module "+module+"\n") && exists(bin) {
				return bin, nil
			}
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	cache, err := os.UserCacheDir()
	if err == nil {
		var bin string
		if bin, err = install(ctx, version(ctx), cache); err == nil {
			return bin, nil
		}
	}
	return "", fmt.Errorf("no API server: install one by go install %s/controlplane@latest, into a folder of PATH or with %s set to the file; or set USE_EXISTING_CLUSTER=true and KUBECONFIG to a cluster for tests: %w", module, Variable, err)
}

// version returns the version of the module in this program, "" if it is unknown. A program of go
// test has no list of its modules (go.dev/issue/33976). It runs in its module, so the go command
// has the list.
func version(ctx context.Context) string {
	if info, ok := debug.ReadBuildInfo(); ok && len(info.Deps) > 0 {
		for _, dep := range info.Deps {
			if dep.Path == module && dep.Replace == nil {
				return dep.Version
			}
		}
		return ""
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{if not .Replace}}{{.Version}}{{end}}", module).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// install installs the controlplane of the version, unless an earlier call has.
func install(ctx context.Context, version, cache string) (string, error) {
	if version == "" || strings.HasPrefix(version, "(") {
		return "", errors.New("this program was not built with a released version of the module, or go list -m does not find it")
	}
	dir := filepath.Join(cache, "controllerkit", version)
	name := "controlplane"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	bin := filepath.Join(dir, name)
	if exists(bin) {
		return bin, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(dir, "install.lock"))
	if err != nil {
		return "", fmt.Errorf("wait for another installation of %s/controlplane@%s: %w", module, version, err)
	}
	defer unlock()
	if exists(bin) { // meanwhile
		return bin, nil
	}
	own, err := os.MkdirTemp(dir, "install-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(own)
	fmt.Fprintf(os.Stderr, "installing %s/controlplane@%s into %s, which takes minutes the first time\n", module, version, dir)
	cmd := exec.CommandContext(ctx, "go", "install", "-ldflags=-s -w", module+"/controlplane@"+version)
	cmd.Env = append(os.Environ(), "GOBIN="+own, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // instead of "signal: killed"
		}
		return "", fmt.Errorf("install %s/controlplane@%s: %w\n%s", module, version, err, out)
	}
	return bin, os.Rename(filepath.Join(own, name), bin)
}

// installing holds an element while this process installs.
var installing = make(chan struct{}, 1)

// lockPoll is the time between two attempts to lock a file, whose release by another process is no event.
const lockPoll = 100 * time.Millisecond

// lock waits until no other call installs, of this process or, on unix, of another one with the same file.
func lock(ctx context.Context, file string) (unlock func(), err error) {
	select {
	case installing <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		<-installing
		return nil, err
	}
	unlock = func() {
		f.Close() // which unlocks it
		<-installing
	}
	for {
		if tryLock(f) {
			return unlock, nil
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			unlock()
			return nil, context.Cause(ctx)
		}
	}
}

func exists(file string) bool {
	info, err := os.Stat(file)
	return err == nil && !info.IsDir()
}
