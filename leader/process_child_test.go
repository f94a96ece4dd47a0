package leader_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/leader"
)

// childVariable makes a copy of this test binary a replica. It holds a childReplica as
// JSON.
const childVariable = "LEADER_TEST_CHILD"

// A childReplica is a replica that is a process of its own, and what it is told.
type childReplica struct {
	Kubeconfig, Namespace, Identity string

	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	Recorder string // URL
	Panics   bool   // what lead does; it works if not
}

// A childMessage is posted by a child to the recorder. The child continues after the response.
type childMessage struct {
	What   string
	Number int64 // of the term
	// Before and After are the times right before and after the Check that a
	// prepare and an effect rely on.
	Before, After time.Time
	// Refused counts the Checks that returned ErrLost: of a stopped.
	Refused int
	// Problem describes a fault.
	Problem string
}

// TestChildProcess is no test: it is the main function of the processes that the
// tests below start.
func TestChildProcess(t *testing.T) {
	config := os.Getenv(childVariable)
	if config == "" {
		return
	}
	go func() { // the end of the parent is the end of the child
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var c childReplica
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		t.Fatal(err)
	}
	if err := c.run(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func (c childReplica) run(ctx context.Context) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	e := &leader.Elector{
		Leases: clients.CoordinationV1().Leases(c.Namespace), Namespace: c.Namespace, Name: leaseName, Identity: c.Identity,
		LeaseDuration: c.LeaseDuration, RenewDeadline: c.RenewDeadline, RetryPeriod: c.RetryPeriod,
	}
	if c.Panics {
		return e.Run(ctx, c.panickingLead)
	}
	return e.Run(ctx, c.workingLead)
}

// say posts a message and waits for the answer. No context cuts it short: it is
// an effect at its worst.
func (c childReplica) say(m childMessage) {
	body, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	answer, err := http.Post(c.Recorder, "application/json", bytes.NewReader(body))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(4)
	}
	answer.Body.Close()
}

// workingLead checks, prepares an effect, and has it, without a pause, until both
// Check and its context tell it to stop.
func (c childReplica) workingLead(ctx context.Context) error {
	term, ok := leader.TermFrom(ctx)
	if !ok {
		return errors.New("lead's context has no term")
	}
	c.say(childMessage{What: "leads", Number: term.Number})
	for refused := 0; ; {
		m := childMessage{Number: term.Number, Before: time.Now()}
		err := term.Check(ctx)
		m.After = time.Now()
		switch {
		case err == nil:
			m.What = "prepare"
			c.say(m)
			m.What = "effect"
			c.say(m)
			continue
		case !errors.Is(err, leader.ErrLost):
			m.Problem = fmt.Sprintf("Check() = %v, want ErrLost", err)
		}
		refused++
		select {
		case <-ctx.Done():
		default:
			continue // its context must end soon; all Checks until then must fail too
		}
		if cause := context.Cause(ctx); !errors.Is(cause, leader.ErrLost) {
			m.Problem = fmt.Sprintf("the cause of lead's context is %v, want ErrLost", cause)
		}
		m.What, m.Refused = "stopped", refused
		c.say(m)
		return ctx.Err()
	}
}

// panickingLead panics with a value that takes its time, as printing the stacks
// of a busy process does: the runtime asks for its text after all deferred calls
// were made and before it ends the process.
func (c childReplica) panickingLead(context.Context) error {
	c.say(childMessage{What: "leads"})
	defer c.say(childMessage{What: "deferred"})
	c.panics()
	return nil
}

//go:noinline
func (c childReplica) panics() { panic(slowPanic{c}) }

type slowPanic struct{ replica childReplica }

func (p slowPanic) Error() string {
	p.replica.say(childMessage{What: "unwound"})
	return "the work is broken"
}
