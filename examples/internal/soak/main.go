package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/shutdown"
)

// options are the settings of a run. All but the first four belong to the identity of its
// folder.
type options struct {
	dir                           string
	hours                         float64
	controlplane, tenant, website string

	objects, replicas, etcds, servers int
	seed                              uint64

	churn, quiet, bound time.Duration // the parts of a cycle
	users               int
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard) // client-go's lines about the faults
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	s, err := open(o)
	if err != nil {
		return err
	}
	ended := s.soak(ctx, out)
	verdict, err := s.report()
	if err != nil {
		return errors.Join(ended, err)
	}
	fmt.Fprintln(out, verdict)
	switch {
	case ended != nil:
		return fmt.Errorf("ended after %.2f of %.2f hours, the same command goes on: %w", s.Elapsed.Hours(), o.hours, ended)
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted after %.2f of %.2f hours: the same command goes on", s.Elapsed.Hours(), o.hours)
	case len(s.Violations) > 0 || len(s.leaks()) > 0:
		return fmt.Errorf("%d violations, %d measures are not flat: see %s", len(s.Violations), len(s.leaks()), o.dir)
	}
	return nil
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	fs.StringVar(&o.dir, "dir", "", "`folder` of the run")
	fs.Float64Var(&o.hours, "hours", 0, "`hours` of the run, of all its parts together")
	fs.StringVar(&o.controlplane, "controlplane", "bin/controlplane", "`file` of the control plane")
	fs.StringVar(&o.tenant, "tenant", "bin/tenant", "`file` of the tenant controller")
	fs.StringVar(&o.website, "website", "bin/website", "`file` of the website operator")
	fs.IntVar(&o.objects, "objects", 2000, "`number` of tenants and websites together")
	fs.IntVar(&o.replicas, "replicas", 3, "`number` of replicas of each operator; the first is never killed, so that its memory can be judged")
	fs.IntVar(&o.etcds, "etcds", 3, "`number` of etcds")
	fs.IntVar(&o.servers, "servers", 2, "`number` of kube-apiservers, at least 2")
	fs.Uint64Var(&o.seed, "seed", 1, "`seed` of the random choices")
	fs.IntVar(&o.users, "users", 8, "`number` of users, each with about two changes a second")
	fs.DurationVar(&o.churn, "churn", 35*time.Second, "`time` of changes and faults in a cycle")
	fs.DurationVar(&o.quiet, "quiet", 15*time.Second, "`time` without them before the first check")
	fs.DurationVar(&o.bound, "bound", 3*time.Minute, "`time` after the last change and fault in which all must be right")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.dir == "":
		return o, errors.New("-dir is empty: name a folder for the run")
	case !(o.hours > 0):
		return o, fmt.Errorf("-hours %v is not valid: use more than 0", o.hours)
	case o.objects < 2 || o.users < 1 || o.replicas < 1 || o.servers < 2:
		return o, errors.New("-objects and -servers must be at least 2, -users and -replicas at least 1")
	case o.churn <= 0 || o.quiet <= 0 || o.bound < o.quiet:
		return o, errors.New("-churn and -quiet must be more than 0, -bound at least -quiet")
	}
	return o, nil
}
