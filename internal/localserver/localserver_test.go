package localserver

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// program writes a controlplane that is ready at once and then runs the shell commands.
func program(t *testing.T, then string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the program of this test is a shell script")
	}
	bin := filepath.Join(t.TempDir(), "controlplane")
	script := `#!/bin/sh
cat >"$3" <<END
{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c"}}], "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]}
END
echo "controlplane: ready"
` + then
	if err := os.WriteFile(bin, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return bin
}

// stop stops the server and fails the test if that takes a minute.
func stop(t *testing.T, s *Server) error {
	t.Helper()
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop() }()
	select {
	case err := <-stopped:
		return err
	case <-time.After(time.Minute):
		t.Fatal("Stop hangs")
		return nil
	}
}

// A second Stop returns the result of the first.
func TestStopTwice(t *testing.T) {
	for _, tt := range []struct {
		name, then, want string
	}{
		{"end of standard input", "cat\n", ""},
		{"error", "cat; echo no space left >&2; exit 3\n", "controlplane: exit status 3\nno space left\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Start(t.Context(), program(t, tt.then))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				got := ""
				if err := stop(t, s); err != nil {
					got = err.Error()
				}
				if got != tt.want {
					t.Errorf("Stop() = %q, want %q", got, tt.want)
				}
			}
			if _, err := os.Stat(s.dir); err == nil {
				t.Error("the files are left")
			}
		})
	}
}

// The error of Stop has the end of the log of a process that was killed before.
func TestStopOfKilled(t *testing.T) {
	s, err := Start(t.Context(), program(t, "i=0; while [ $i -lt 9999 ]; do echo \"line $i\"; i=$((i+1)); done >&2\nkill -9 $$\n"))
	if err != nil {
		t.Fatal(err)
	}
	err = stop(t, s)
	if err == nil || !strings.HasPrefix(err.Error(), "controlplane: signal: killed\n") || !strings.HasSuffix(err.Error(), "\nline 9998\n") || len(err.Error()) > 64<<10 {
		t.Errorf("Stop() = %.200v, want the end of the log", err)
	}
}

// Stop kills a process that does not end, and reports that.
func TestStopOfHanging(t *testing.T) {
	defer func(d time.Duration) { stopTimeout = d }(stopTimeout)
	stopTimeout = 100 * time.Millisecond
	s, err := Start(t.Context(), program(t, "echo waiting for a lock >&2\nexec sleep 600\n"))
	if err != nil {
		t.Fatal(err)
	}
	err = stop(t, s)
	if err == nil || !strings.Contains(err.Error(), "killed") || !strings.Contains(err.Error(), "100ms after its standard input was closed") || !strings.HasSuffix(err.Error(), "waiting for a lock\n") {
		t.Errorf("Stop() = %v, want that it was killed", err)
	}
	if s.cmd.ProcessState == nil {
		t.Error("the process runs after Stop")
	}
}
