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
	"github.com/controllerkit/controllerkit/controllertest/internal/kubeconfig"
)

// A Scenario is a controller and a script that it must survive. Its functions are called
// concurrently.
type Scenario struct {
	// Name is shown in reports and in the variable that repeats a plan. "" means the
	// name of the test; for Run it means "scenario".
	Name string

	// Start runs the controller. It blocks until all that it started has stopped, soon
	// after ctx is done. Each call is a new process: it makes its clients from cfg and
	// shares no state with other calls. It writes only objects in env.Namespace, and
	// cluster-scoped objects that it creates and whose names contain env.Namespace or
	// the uid of an object, because other runs use the same server. Lists and watches by
	// cfg lack the objects of other runs. If Start returns before
	// ctx is done, the process has crashed; without faults that is a finding.
	// Start is called concurrently: register types in a shared scheme before, for example
	// in an init function. A panic outside of Start and of client-go ends the test.
	// Required, unless Command is set.
	Start func(ctx context.Context, cfg *rest.Config, env *Env) error

	// From is the former version of the controller. It brings the first steps of the script to rest,
	// without faults; if it makes another state than usual, the plan has no outcome. Then it ends, and the
	// controller of the scenario takes over in a step of its own. The user does not act in it, so each
	// change that it makes outside of a status is a finding of the oracle Upgrade. The rest of the script
	// follows. Accept can accept one. For a downgrade, exchange the two versions. nil means none.
	From *Former

	// Command returns the command of a real process, which replaces Start. The explorer
	// kills it by SIGKILL and freezes it by SIGSTOP, with its process group, which is a new one
	// unless SysProcAttr is set. It cannot register queues, and its
	// goroutines are not checked. Its clients should write JSON (see
	// rest.Config.ContentType), because a protobuf write has only verb and resource as
	// its name. The output of the process is in the timeline, unless Stdout and Stderr
	// are set. Required, unless Start is set.
	Command func(p Process) (*exec.Cmd, error)

	// World runs the other programs of a cluster: a kubelet that starts Pods, the protection
	// of claims (both are in package world), an ACME server. Each run has one, from before the first process until after
	// the last one. It makes its clients from cfg, which has all rights and no faults, and
	// acts only on the objects of env.Namespace or of the run. It blocks until all that it
	// started has stopped, soon after ctx is done, and retries after errors: if it returns
	// earlier, the exploration ends with an error. To clean up, it can send requests for half
	// of Options.StopTimeout after ctx is done. Its requests are no operations. Objects
	// that it creates, and its deletions, are not compared with the runs without faults;
	// Converged and Invariants see them. nil means none.
	World func(ctx context.Context, cfg *rest.Config, env *Env) error

	// Script is the list of the user's steps. Each step begins when the cluster has
	// converged after the step before, and under NextStep, StepBefore and TwoSteps
	// earlier: a step that needs a result of the step before must return an error if it is absent. Required.
	Script []Step

	// Converged returns nil if the state is the desired one, and otherwise an error that
	// names the difference. It is called with the whole present state when no event has
	// come for Options.QuietPeriod, and again if an event comes during the call. It
	// depends on the state alone, and must not modify or keep it. Required.
	Converged func(s *State) error

	// Invariants hold in every state of the cluster, under every fault. nil means none.
	Invariants []Invariant

	// Mask removes the fields of an object that may differ between two runs, before end
	// states are compared. It may modify the object, or set its Object to nil to remove
	// it whole. Fields that the API server sets, and fields that differ between the runs
	// without faults, are removed without it. Nil removes no other field.
	Mask func(obj *unstructured.Unstructured)

	// Accept returns the reason why a finding of a plan is no defect to report, or "". The
	// plan is "" in runs without faults. If Accept returns reasons for all findings of a
	// plan, the plan does not fail; Report.Accepted counts the plans of each reason. Nil
	// accepts no finding.
	Accept func(f Finding, plan string) (reason string)

	// CRDs are YAML files with CustomResourceDefinitions, or folders of such files. Explore
	// creates the definitions, and waits until the API server serves their kinds, before
	// Setup. If a definition of the same name exists, it must have the same spec. Other
	// documents of the files, and the folders below a folder, are skipped. Definitions are
	// not deleted at the end. nil means none.
	CRDs []string

	// Setup prepares a server before its first run, after CRDs. cfg has all rights. Without
	// Options.Config, Explore renews its server after thousands of plans, and calls Setup again.
	// nil means no preparation.
	Setup func(ctx context.Context, cfg *rest.Config) error

	// Pause is the duration of the faults Pause, Freeze and SlowRenewal. For a controller
	// with leader election or shards it must be longer than the lease. 0 means 500ms.
	Pause time.Duration

	// Replicas is the number of processes that run in parallel. More than one needs a
	// controller with leader election or shards. 0 means 1.
	Replicas int

	// Cloud selects the kind of service of env.Cloud.
	Cloud cloud.Options

	// UserObjects are the objects at which UserDelete, UserEdit and UserRecreate are
	// injected, as "resource/name" with the group in the resource. The script must
	// create them, otherwise Explore returns an error. nil means all objects that the script
	// creates.
	UserObjects []string
}

// A Step is an action of the user.
type Step struct {
	// Name is shown in reports.
	Name string

	// Do makes its clients from cfg, which has all rights and no faults. If a plan
	// deletes an object, a NotFound error of Do is no finding. Do may wait for the controller:
	// its ctx ends Options.ConvergeTimeout after the last write of Do or the last fault. An error
	// of Do is a finding, so it calls no t.FailNow. Required.
	Do func(ctx context.Context, cfg *rest.Config, env *Env) error
}

// An Invariant is a condition that each single state satisfies.
type Invariant struct {
	// Name is shown in reports.
	Name string

	// Check returns nil if the state satisfies the condition, and otherwise an error
	// that names the violation. It must not modify or keep the state. Required.
	Check func(s *State) error
}

// Env is the environment of a controller, a user or the World in a run, in addition to the
// API server.
type Env struct {
	// Namespace exists, is empty at first, and belongs to this run alone.
	Namespace string

	// Cloud is the external service of the run. It outlives the processes. The calls of
	// the controller are operations.
	Cloud *cloud.Cloud

	incarnation *incarnation // nil for the user and the World
	kubeconfig  *kubeconfig.File
}

// External makes a call to an external service an operation. Faults may kill the process
// before or after the call, skip the call, or lose its outcome, which External reports
// as an error. The state behind call must be outside of the process, which loses it.
// Cloud does not need External.
func (e *Env) External(ctx context.Context, name string, call func(context.Context) error) error {
	if e.incarnation == nil {
		return call(ctx)
	}
	return e.incarnation.external(ctx, name, call)
}

// Queue registers a work queue, whose Len must be 0 at rest. A queue whose method ShuttingDown
// returns true no longer counts. If the queue has the method
// Snapshot of queue.Queue, the explorer also waits for running keys and for keys whose
// delay ends within 5s. The queues of client-go have no such method. A Converged that
// does not check everything may then accept a state too early, which Report.TooEarly
// lists.
//
// If the context of Run of a reconcile.Controller is derived from the context of Start, the
// explorer also waits up to 5s for keys that wait for its Gate.
func (e *Env) Queue(q interface{ Len() int }) {
	if e.incarnation != nil {
		e.incarnation.watch(q, nil)
	}
}

// Options bound and select the plans that Explore runs. The zero value runs every plan
// with one fault.
type Options struct {
	// Config is an administrator's configuration for the API server. nil means the cluster
	// of KUBECONFIG if USE_EXISTING_CLUSTER is "true", and otherwise a controlplane that
	// Explore starts and stops.
	Config *rest.Config

	// Budget bounds the exploration. A plan starts only if the runs before it took less than
	// the rest, on average; at the end of Budget, running plans are stopped and do not count.
	// After all plans with one fault, random plans with more faults use the rest of it. 0 means no
	// bound and no random plans.
	Budget time.Duration

	// Faults are the kinds to inject. nil means AllFaults().
	Faults []Kind

	// Plans replaces all other plans, in the form of Failure.Plan. nil means that Explore
	// chooses the plans.
	Plans []string

	// Confirm is the number of runs that repeat a failing plan. A finding is flaky if not
	// all of them have it. 0 means 3, and a negative number means no repeated run.
	Confirm int

	// Sample is the number of plans with one fault, chosen by Seed. 0 means all.
	Sample int

	// Seed chooses samples and random plans. 0 means 1.
	Seed uint64

	// Parallel is the number of parallel runs, which wait most of the time. 0 means 64
	// for each CPU.
	Parallel int

	// QuietPeriod is the time without events after which the cluster is at rest. It must
	// be longer than the controller's pauses between two writes. 0 means 250ms.
	QuietPeriod time.Duration

	// ConvergeTimeout bounds the time from a step or the last fault to the converged
	// cluster, and from the last write or fault in a step to its end. On a busy machine, time in which the test does not run or waits for the API
	// server does not count, up to five times ConvergeTimeout. A plan that takes longer for this
	// reason is in Report.Unjudged. 0 means 30s.
	ConvergeTimeout time.Duration

	// KeepNamespaces keeps the namespaces of the runs and their objects. It saves time if
	// the server of Config is thrown away afterwards.
	KeepNamespaces bool

	// Folder is where Explore writes the report: as JSON for tools, and as an HTML page with a
	// table for the timeline of each failure, with a column for each process, the user, each
	// faulty watch and the cluster. The files have the name of the scenario. If the name has
	// more than 100 bytes or characters other than ASCII letters, digits, "-" and "_", they
	// have its beginning, with "-" for these characters, and a hash of it. Only their owner
	// can read them. Findings hide the data of Secrets; log lines of the controller and errors
	// of the scenario are stored unchanged. "" means no files.
	Folder string

	// StopTimeout bounds the time in which the goroutines of a killed process end. 0 means
	// 10s.
	StopTimeout time.Duration

	replays    int // runs of each plan, from replayVariable
	renewAfter int // plans on one server; 0 means renewAfter
}

func (o Options) validate() error {
	for _, kind := range o.Faults {
		if !slices.Contains(AllFaults(), kind) {
			return fmt.Errorf("controllertest: Options.Faults: kind %q does not exist: use one of %v", kind, AllFaults())
		}
	}
	for _, field := range []struct {
		name  string
		value int64
	}{
		{"Budget", int64(o.Budget)}, {"Sample", int64(o.Sample)}, {"Parallel", int64(o.Parallel)},
		{"QuietPeriod", int64(o.QuietPeriod)}, {"ConvergeTimeout", int64(o.ConvergeTimeout)}, {"StopTimeout", int64(o.StopTimeout)},
	} {
		if field.value < 0 {
			return fmt.Errorf("controllertest: Options.%s is negative: use 0 for the default", field.name)
		}
	}
	return nil
}

func (o Options) orDefaults() Options {
	if o.Confirm == 0 {
		o.Confirm = 3
	}
	if o.Parallel == 0 {
		// Measured with 2 CPUs: 32 for each run 26 plans a second, 64 run 39, and 96 no more.
		o.Parallel = 64 * runtime.GOMAXPROCS(0)
	}
	if o.QuietPeriod == 0 {
		o.QuietPeriod = 250 * time.Millisecond
	}
	if o.ConvergeTimeout == 0 {
		o.ConvergeTimeout = 30 * time.Second
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
