package controllertest

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

// A Scenario is a controller and a story that it must survive. Start or Command,
// Script and Converged are required.
type Scenario struct {
	// Name stands in reports and in the line that replays a plan. "" means the
	// name of the test.
	Name string

	// Start runs the controller and blocks until all that it started has stopped,
	// which has to be soon after ctx is done. It makes its clients from cfg, and
	// everything else again: each call is a new process. It must confine itself to
	// env.Namespace, and to cluster-scoped objects that it creates itself and whose
	// names contain env.Namespace or the uid of an object, because other runs go on
	// beside it. An error or a return while ctx is not done is a
	// crash that is reported.
	Start func(ctx context.Context, cfg *rest.Config, env *Env) error

	// Command, if it is not nil, is used instead of Start: it makes the command of a
	// real process, which is killed by SIGKILL and frozen by SIGSTOP. It finds
	// everything else than Start does, but each life costs what it takes to start a
	// process, and its queues cannot be looked into. Its clients should write JSON
	// (rest.Config.ContentType): plans know what is written in protobuf by verb and
	// resource only. What the process prints goes into
	// the timeline unless Stdout and Stderr are set.
	Command func(p Process) (*exec.Cmd, error)

	// Script is what users do, one step after the other. Each begins when the step
	// before has converged.
	Script []Step

	// Converged says whether the cluster is as it should be: nil, or what is
	// missing. It is asked when nothing has happened for Options.Quiet, with the whole
	// present state, and must not modify or keep it. If something happens while it is
	// asked, it is asked again.
	Converged func(s *State) error

	// Invariants hold in every state that the cluster goes through, under every
	// fault.
	Invariants []Invariant

	// Mask removes from an object what may differ between two runs of the same
	// story, before end states are compared; it may modify the object. What the API
	// server sets, and what differs between the runs without faults, is removed
	// without it. nil means nothing else.
	Mask func(obj *unstructured.Unstructured)

	// Setup prepares a server, once for each: custom resource definitions, for
	// example. It is told a configuration with all rights. nil means nothing.
	Setup func(ctx context.Context, cfg *rest.Config) error

	// Pause is how long the faults Pause, Freeze and SlowRenewal last: more than the
	// lease's duration for a controller with leader election. 0 means 500ms.
	Pause time.Duration

	// Replicas is how many incarnations run side by side, which only a controller
	// with leader election survives. 0 means 1.
	Replicas int

	// Cloud says what kind of service env.Cloud is.
	Cloud cloud.Options

	// User is what faults of the kinds UserDelete, UserEdit and UserRecreate may be
	// done to: objects that the script created, as "resource/name", the resource
	// with its group. nil means all of them.
	User []string
}

// A Step is something that a user does.
type Step struct {
	// Name stands in reports.
	Name string

	// Do does it. It makes its clients from cfg, which has all rights and no
	// faults. An object that a plan has deleted already is no reason to fail:
	// NotFound errors end the step and are not reported in such plans.
	Do func(ctx context.Context, cfg *rest.Config, env *Env) error
}

// An Invariant is a sentence about single states.
type Invariant struct {
	// Name stands in reports.
	Name string

	// Check returns nil if the state satisfies the sentence, and else what is wrong.
	// States are checked in the order in which the API server stored them, a
	// call to the cloud between the writes that it was made between. It must not
	// modify or keep the state.
	Check func(s *State) error
}

// Env is what a controller or a user has in a run, besides the API server.
type Env struct {
	// Namespace exists, is empty at first, and belongs to this run alone.
	Namespace string

	// Cloud is the run's external service. It outlives the incarnations. The
	// controller's calls are operations at which faults happen.
	Cloud *cloud.Cloud

	incarnation *incarnation // nil for the user
}

// External makes a call to something outside of Kubernetes an operation at which
// faults happen: the process may be killed before or after it, it may not be
// made, or its outcome be lost, which then is an error of this method. The
// state behind call must not be in the process, which loses it. Cloud does this
// by itself.
func (e *Env) External(ctx context.Context, name string, call func(context.Context) error) error {
	if e.incarnation == nil {
		return call(ctx)
	}
	return e.incarnation.external(ctx, name, call)
}

// Queue registers a work queue. At rest its Len must be 0. If the queue has the
// method Snapshot of queue.Queue, a running key and a key whose delay ends within 5s
// are no rest either. The queues of client-go do not report these keys: there a
// Converged that does not check everything may return nil too early, which
// Report.TooEarly names.
func (e *Env) Queue(q interface{ Len() int }) {
	if e.incarnation != nil {
		e.incarnation.addQueue(q)
	}
}

// Options bound and select what Explore does. The zero value runs every plan
// with one fault, and time travel.
type Options struct {
	// Config leads to the API server, as an administrator. nil means: the cluster of
	// KUBECONFIG if USE_EXISTING_CLUSTER is "true", and else a controlplane that is
	// started and stopped.
	Config *rest.Config

	// Budget bounds the time in which plans are started. What is left of it after
	// all plans with one fault goes to pairs of faults and then to random plans.
	// 0 means no bound, and none of these.
	Budget time.Duration

	// Faults are the kinds to inject. nil means AllFaults().
	Faults []Kind

	// Plans are run instead of all others, in the form in which reports print them.
	Plans []string

	// Sample is how many plans with one fault to run, chosen by Seed. 0 means all.
	Sample int

	// Seed chooses samples and random plans. 0 means 1.
	Seed uint64

	// Parallel is how many runs go on at once; most of the time they wait. 0 means 32
	// for each CPU.
	Parallel int

	// Quiet is how long nothing may be written for the cluster to be at rest. It must
	// be longer than a controller's usual pauses between two writes. 0 means 250ms.
	Quiet time.Duration

	// Settle is how long the cluster may take to come to rest after a step or the
	// last fault. 0 means 30s.
	Settle time.Duration

	// KeepNamespaces leaves the namespaces of the runs and what is in them where they
	// are, because the server of Config is thrown away afterwards.
	KeepNamespaces bool

	// StopTimeout is how long a killed incarnation's goroutines may take to end.
	// 0 means 10s.
	StopTimeout time.Duration
}

func (o Options) validate() error {
	for _, kind := range o.Faults {
		if !slices.Contains(AllFaults(), kind) {
			return fmt.Errorf("controllertest: Options.Faults: there is no kind %q; there are %v", kind, AllFaults())
		}
	}
	for _, field := range []struct {
		name  string
		value int64
	}{
		{"Budget", int64(o.Budget)}, {"Sample", int64(o.Sample)}, {"Parallel", int64(o.Parallel)},
		{"Quiet", int64(o.Quiet)}, {"Settle", int64(o.Settle)}, {"StopTimeout", int64(o.StopTimeout)},
	} {
		if field.value < 0 {
			return fmt.Errorf("controllertest: Options.%s is negative: 0 means its default", field.name)
		}
	}
	return nil
}

func (o Options) orDefaults() Options {
	if o.Parallel == 0 {
		o.Parallel = 32 * runtime.GOMAXPROCS(0)
	}
	if o.Quiet == 0 {
		o.Quiet = 250 * time.Millisecond
	}
	if o.Settle == 0 {
		o.Settle = 30 * time.Second
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = 10 * time.Second
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Faults == nil {
		o.Faults = AllFaults()
	}
	return o
}
