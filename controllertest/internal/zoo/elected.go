package zoo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/reconcile"
)

const (
	electedLabel     = "elected.zoo.example.com/account"   // of the ConfigMaps that want an account
	electedAnnounced = "elected.zoo.example.com/announced" // annotation: the account is being made
	electedSettings  = "settings"                          // the ConfigMap whose change makes the leader step down

	// A pause loses the lead, but another replica does not get it during the pause,
	// because the service cannot reject a call that was made before the loss and arrives
	// after it.
	electedPause    = 2 * time.Second
	electedLease    = 4 * time.Second
	electedDeadline = time.Second
	electedRetry    = 200 * time.Millisecond
)

// An electedLoop is one of two replicas. The leader creates an account for each
// ConfigMap with the label. The service creates two if it is called twice, so the leader
// keeps the accounts in memory. The memory is right as long as only this leader creates
// and deletes accounts.
type electedLoop struct {
	cfg      *rest.Config
	env      *controllertest.Env
	kube     kubernetes.Interface
	bug      string
	announce bool
	leads    sync.WaitGroup
	early    electedMemory // of the process; only one mutant looks at it
	begun    callsUnderWay
}

// callsUnderWay counts them. It is registered like a queue: with a call under way
// the controller is not at rest.
type callsUnderWay struct{ atomic.Int32 }

func (c *callsUnderWay) Len() int { return int(c.Load()) }

// An electedMemory is the knowledge of a leader.
type electedMemory struct {
	mu       sync.Mutex        // held while an account is made or deleted
	accounts map[string]string // name to id; nil means that it has to be read
}

func startElected(bug string, announce bool) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		e := &electedLoop{cfg: cfg, env: env, kube: kube, bug: bug, announce: announce}
		env.Queue(&e.begun)
		defer e.leads.Wait()
		if bug == "memory-at-start" {
			if err := e.early.read(ctx, env.Cloud); err != nil {
				return err
			}
		}
		for ctx.Err() == nil {
			if err := e.campaign(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// campaign returns when the lead was lost or given up.
func (e *electedLoop) campaign(ctx context.Context) error {
	if e.bug == "process-context" || e.bug == "released-early" {
		return e.campaignWithClientGo(ctx)
	}
	elector := &leader.Elector{
		Leases: e.kube.CoordinationV1().Leases(e.env.Namespace), Namespace: e.env.Namespace, Name: "elected",
		LeaseDuration: electedLease, RenewDeadline: electedDeadline, RetryPeriod: electedRetry, DrainTimeout: electedLease,
	}
	return elector.Run(ctx, func(leading context.Context) error {
		leading, stepDown := context.WithCancel(leading)
		defer stepDown()
		return e.lead(leading, stepDown)
	})
}

// campaignWithClientGo is the same with client-go's elector, which does not wait
// for the work of a leader that has lost the lead or steps down.
func (e *electedLoop) campaignWithClientGo(ctx context.Context) error {
	campaign, stepDown := context.WithCancel(ctx)
	defer stepDown()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: e.env.Namespace, Name: "elected"}, Client: e.kube.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: string(uuid.NewUUID())},
		},
		LeaseDuration: electedLease, RenewDeadline: electedDeadline, RetryPeriod: electedRetry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				if e.bug == "process-context" {
					leading = ctx // instead of the context of the lead
				}
				_ = e.lead(leading, stepDown)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	elector.Run(campaign)
	return nil
}

// lead works until ctx is done, and finishes what it has begun.
func (e *electedLoop) lead(ctx context.Context, stepDown func()) error {
	e.leads.Add(1)
	defer e.leads.Done()
	memory := &electedMemory{}
	if e.bug == "memory-at-start" {
		memory = &e.early // another one may have led since
	}
	l, err := newLoop(rest.CopyConfig(e.cfg), e.env, loopOptions{})
	if err != nil {
		return err
	}
	configMaps := l.factory.Core().V1().ConfigMaps()
	if err := l.watch(schema.GroupResource{Resource: "configmaps"}, configMaps.Informer(), self); err != nil {
		return err
	}
	if _, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, now any) {
			if cm := now.(*corev1.ConfigMap); cm.Name == electedSettings && cm.Data["v"] != before.(*corev1.ConfigMap).Data["v"] {
				stepDown()
			}
		},
	}); err != nil {
		return err
	}
	// Accounts of deleted ConfigMaps have no event, so this lists them once.
	l.queue.Add(types.NamespacedName{Namespace: e.env.Namespace, Name: electedSettings})
	err = l.run(ctx, func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		cm, err := configMaps.Lister().ConfigMaps(key.Namespace).Get(key.Name)
		if err != nil {
			cm = nil // the account is absent
		}
		return reconcile.Result{}, e.reconcile(ctx, l, memory, key.Name, cm)
	})
	l.queue.ShutDown() // the next leader begins with everything; a key whose delay ends later is nobody's
	return err
}

func (e *electedLoop) reconcile(ctx context.Context, l *loop, memory *electedMemory, name string, cm *corev1.ConfigMap) error {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	if memory.accounts == nil {
		if err := memory.read(ctx, e.env.Cloud); err != nil {
			return err
		}
		for name := range memory.accounts {
			l.queue.Add(types.NamespacedName{Namespace: e.env.Namespace, Name: name})
		}
	}
	id, has := memory.accounts[name]
	wanted := cm != nil && cm.Labels[electedLabel] != ""
	begun := context.WithoutCancel(ctx) // started calls are finished
	// The account can belong to an earlier object of this name.
	if wanted && e.announce && cm.Annotations[electedAnnounced] == "" {
		cm = cm.DeepCopy()
		metav1.SetMetaDataAnnotation(&cm.ObjectMeta, electedAnnounced, "true")
		if _, err := e.kube.CoreV1().ConfigMaps(cm.Namespace).Update(begun, cm, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if has == wanted {
		return nil
	}
	if term, ok := leader.TermFrom(ctx); ok {
		if err := term.Check(ctx); err != nil {
			return err
		}
	}
	e.begun.Add(1)
	defer e.begun.Add(-1)
	if wanted {
		account, err := e.env.Cloud.Create(begun, cloud.Resource{Name: name})
		if err != nil {
			memory.accounts = nil // it may have made it
			return err
		}
		memory.accounts[name] = account.ID
		return nil
	}
	if err := e.env.Cloud.Delete(begun, id); err != nil && !errors.Is(err, cloud.ErrNotFound) {
		return err
	}
	delete(memory.accounts, name)
	return nil
}

func (m *electedMemory) read(ctx context.Context, c *cloud.Cloud) error {
	all, err := c.List(ctx, "")
	if err != nil {
		return err
	}
	m.accounts = map[string]string{}
	for _, account := range all {
		m.accounts[account.Name] = account.ID
	}
	return nil
}

func elected(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name:     "elected",
		Start:    startElected(bug, false),
		Replicas: 2,
		Pause:    electedPause,
		Script: []controllertest.Step{
			userCreates("a", electedLabel),
			userCreates("b", electedLabel),
			userCreates("c", electedLabel),
			userDeletes("a"),
		},
		Converged:  accountsOf(electedLabel),
		Invariants: []controllertest.Invariant{oneAccountEach},
	}
}

// handover is elected with a leader that steps down while it works.
func handover(bug string) controllertest.Scenario {
	s := elected(bug)
	s.Name = "handover"
	s.Start = startElected(bug, true)
	s.UserObjects = []string{"configmaps/a"}
	s.Script = []controllertest.Step{
		userCreates(electedSettings, "handover.zoo.example.com/settings"),
		userStep("create a and, once a leader is at it, change the settings", func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
			a := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{electedLabel: "true"}}}
			if err := userDoesAndWaits(ctx, configMaps, "a", func() error {
				_, err := configMaps.Create(ctx, a, metav1.CreateOptions{})
				return err
			}, func(cm *corev1.ConfigMap) bool { return cm.Annotations[electedAnnounced] != "" }); err != nil {
				return err
			}
			_, err := configMaps.Patch(ctx, electedSettings, types.MergePatchType, []byte(`{"data":{"v":"2"}}`), metav1.PatchOptions{})
			return err
		}),
	}
	return s
}

// accountsOf requires an account for each ConfigMap with a label, and no others.
func accountsOf(label string) func(*controllertest.State) error {
	return func(s *controllertest.State) error {
		accounts := map[string]bool{}
		for _, account := range s.Cloud() {
			accounts[account.Name] = true
			if s.Get("configmaps", account.Name) == nil {
				return fmt.Errorf("account %s belongs to nothing", account.Name)
			}
		}
		for _, cm := range s.Objects("configmaps") {
			if cm.GetLabels()[label] != "" && (!accounts[cm.GetName()] || cm.GetDeletionTimestamp() != nil) {
				return fmt.Errorf("%s has no account, or is still there", cm.GetName())
			}
		}
		return nil
	}
}

var oneAccountEach = controllertest.Invariant{
	Name: "at most one account of a name",
	Check: func(s *controllertest.State) error {
		accounts := map[string]bool{}
		for _, account := range s.Cloud() {
			if accounts[account.Name] {
				return fmt.Errorf("two accounts for %s", account.Name)
			}
			accounts[account.Name] = true
		}
		return nil
	},
}

func electedFamily() Family {
	return Family{Name: "elected", Scenario: elected, Mutants: []Mutant{{
		Bug: "process-context", Cause: "work outlives leadership",
		Does:      "runs the leader's work with the context of the process, so the work continues after the loss",
		Reference: "kyverno/kyverno#14984",
		Plan:      "freeze@external create a#1", Oracle: controllertest.Invariance,
	}, {
		Bug: "memory-at-start", Cause: "standby's memory is out of date",
		Does:      "reads the accounts at the start of the process, and relies on them when it becomes the leader later",
		Reference: "hadron-project/hadron#71",
		Plan:      "crash-after@external create a#1", Oracle: controllertest.Invariance,
	}}}
}

func handoverFamily() Family {
	return Family{Name: "handover", Scenario: handover, Mutants: []Mutant{{
		Bug: "released-early", Cause: "lease released while work goes on",
		Does:      "releases the Lease when it steps down, before its work has ended",
		Reference: "kubernetes/kubernetes#139991", Historic: true,
		Plan: "pause@external create a#1", Oracle: controllertest.Invariance,
	}}}
}
