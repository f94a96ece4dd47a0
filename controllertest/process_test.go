package controllertest_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/controllertest"
)

// TestProcess: a controller that is a process of its own is killed and frozen as
// plans say, finds its way through the faults, and nothing is left of it, also if a shell has
// started it.
func TestProcess(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	type started struct {
		cmd    *exec.Cmd
		output *bytes.Buffer
	}
	lives := map[string][]started{} // by run
	left, mine, err := os.Pipe()    // each process holds its end
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	defer mine.Close()
	s := (&copier{}).scenario()
	s.Start = nil
	s.Pause = 700 * time.Millisecond
	s.Command = func(p controllertest.Process) (*exec.Cmd, error) {
		cmd := exec.Command("sh", "-c", `"$0" & wait`, self)
		cmd.ExtraFiles = []*os.File{mine}
		cmd.Env = append(os.Environ(), processVariable+"="+p.Kubeconfig, "NAMESPACE="+p.Namespace)
		output := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = output, output
		mu.Lock()
		defer mu.Unlock()
		lives[p.Namespace] = append(lives[p.Namespace], started{cmd, output})
		return cmd, nil
	}
	o := quick(t, "crash-before@create configmaps a-copy#1", "crash-after@create configmaps a-copy#1", "freeze@create configmaps a-copy#1", dropped, "410(configmaps)@create configmaps a-copy#1")
	o.ConvergeTimeout, o.Parallel = 30*time.Second, 5
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid != 5 {
		t.Errorf("%d plans are valid, invalid %q", report.Valid, report.Invalid)
	}
	twice, frozen := 0, 0
	for namespace, all := range lives {
		if len(all) == 2 {
			twice++
		}
		for _, life := range all {
			status, ok := life.cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
				t.Errorf("%s: the process ended with %v, want SIGKILL\n%s", namespace, life.cmd.ProcessState, life.output)
			}
			if strings.Contains(life.output.String(), "stood still") {
				frozen++
			}
		}
	}
	if len(lives) != 9 || twice != 2 {
		t.Errorf("%d runs, %d of them with a second process; want 9 and 2", len(lives), twice)
	}
	if frozen == 0 {
		t.Error("no process was stopped")
	}
	mine.Close()
	if err := left.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := left.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a process that the shell has started is left: %v", err)
	}
}

// TestProcessFails: a process that cannot be started, or ends, is reported with
// what it printed.
func TestProcessFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		command []string
		want    []string
	}{
		{"is not there", []string{"/nonexistent/controller"}, []string{"start the process of Scenario.Command: fork/exec /nonexistent/controller: no such file or directory: return the path of a built executable"}},
		{"ends", []string{"sh", "-c", "echo I cannot go on; exit 3"}, []string{"the process of Scenario.Command ended: exit status 3: let it run until it is killed", "prints: I cannot go on"}},
		{"ends well", []string{"true"}, []string{"the process of Scenario.Command ended without an error: let it run until it is killed"}},
		{"never gets ready", []string{"sleep", "600"}, []string{"liveness: not converged 5s after", "the process of Scenario.Command made no request: let it use Process.Kubeconfig"}},
		{"panics", []string{"sh", "-c", "echo panic: nil map >&2; exit 2"}, []string{"the process panicked:\npanic: nil map"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := (&copier{}).scenario()
			s.Start = nil
			s.Command = func(controllertest.Process) (*exec.Cmd, error) {
				return exec.Command(test.command[0], test.command[1:]...), nil
			}
			o := quick(t)
			o.ConvergeTimeout = 5 * time.Second
			rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, s, o) })
			for _, part := range test.want {
				if !strings.Contains(rec.errors(), part) {
					t.Errorf("Explore reports\n%s\nwant %q", rec.errors(), part)
				}
			}
		})
	}
}
