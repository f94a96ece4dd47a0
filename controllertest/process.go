package controllertest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/internal/child"
	"github.com/controllerkit/controllerkit/controllertest/internal/lines"
	"github.com/controllerkit/controllerkit/controllertest/internal/local"
)

// process runs the process of a command. Its requests pass through a proxy that
// applies the faults.
func (i *incarnation) process(ctx context.Context, env *Env, command func(Process) (*exec.Cmd, error)) error {
	kubeconfig, err := env.Kubeconfig()
	if err != nil {
		return err
	}
	service, err := local.Serve(ctx, cloud.Handler(env.Cloud))
	if err != nil {
		return err
	}
	defer service.Close()

	cmd, err := command(Process{Kubeconfig: kubeconfig, Namespace: env.Namespace, CloudURL: service.URL})
	if err != nil {
		return err
	}
	output := &lines.Writer{Note: func(line string) { i.run.note("process %d prints: %s", i.number, line) }}
	if cmd.Stdout == nil {
		cmd.Stdout = output
	}
	if cmd.Stderr == nil {
		cmd.Stderr = output
	}
	cmd.WaitDelay = time.Second
	child.Prepare(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the process of Scenario.Command: %w: return the path of a built executable", err)
	}
	i.run.mu.Lock()
	i.cmd = cmd
	i.run.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { child.Kill(cmd.Process) })
	defer stop()
	err = cmd.Wait()
	child.Kill(cmd.Process) // those that it has started
	var exit *exec.ExitError
	if errors.As(err, &exit) && strings.Contains(output.Text(), "panic: ") {
		i.run.find(Health, "the process panicked:\n%s", output.Text())
	}
	if err == nil {
		return errors.New("the process of Scenario.Command ended without an error: let it run until it is killed")
	}
	return fmt.Errorf("the process of Scenario.Command ended: %w: let it run until it is killed", err)
}

// A Process holds the arguments of Scenario.Command.
type Process struct {
	Kubeconfig string // a file; its server applies the faults, and its user has all rights
	Namespace  string // as in Env
	CloudURL   string // of env.Cloud, for cloud.Connect
}

// freezeProcess stops a real process until thaw is called.
func (i *incarnation) freezeProcess() (thaw func()) {
	i.run.mu.Lock()
	cmd := i.cmd
	i.run.mu.Unlock()
	if cmd == nil {
		return func() {}
	}
	return child.Suspend(cmd.Process)
}
