package zoo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

const (
	registerLabel     = "register.zoo.example.com/account"    // of the ConfigMaps that want an account
	registerDone      = "register.zoo.example.com/registered" // annotation: the UID of the object that has its account
	registerFinalizer = "register.zoo.example.com/account"
)

// A registerLoop gives each labelled ConfigMap an account of its own name in a
// service that lets its clients choose ids, and deletes it with the ConfigMap.
type registerLoop struct {
	*byHand
	bug      string
	informer cache.SharedIndexInformer
	seen     sync.Map // names that have their account; only one mutant looks at it
}

func startRegister(bug string) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		h, err := newByHand(cfg, env)
		if err != nil {
			return err
		}
		r := &registerLoop{byHand: h, bug: bug}
		enqueue := func(obj any) {
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				r.queue.Add(key.Name)
			}
		}
		r.informer, err = r.handle(cache.ResourceEventHandlerFuncs{
			AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }, DeleteFunc: enqueue,
		})
		if err != nil {
			return err
		}
		return r.run(ctx, r.reconcile)
	}
}

func (r *registerLoop) reconcile(ctx context.Context, name string) error {
	obj, exists, err := r.informer.GetStore().GetByKey(r.env.Namespace + "/" + name)
	if err != nil || !exists || obj.(*corev1.ConfigMap).Labels[registerLabel] == "" {
		return err
	}
	cm := obj.(*corev1.ConfigMap)
	held := slices.Contains(cm.Finalizers, registerFinalizer)
	switch {
	case cm.DeletionTimestamp != nil && held:
		return r.unregister(ctx, cm)
	case cm.DeletionTimestamp != nil:
		return nil
	case !held:
		if _, seen := r.seen.Load(name); seen && r.bug == "seen-by-name" {
			return nil // it was another object of that name
		}
		_, err := r.update(ctx, cm, func(cm *corev1.ConfigMap) { cm.Finalizers = append(cm.Finalizers, registerFinalizer) })
		return err
	case cm.Annotations[registerDone] != string(cm.UID): // a copy of a registered object is not one
		return r.register(ctx, cm)
	}
	r.seen.Store(name, true)
	return nil
}

func (r *registerLoop) register(ctx context.Context, cm *corev1.ConfigMap) error {
	// The cache may be behind: the object may have lost its account and its finalizer since.
	live, err := r.configMaps.Get(ctx, cm.Name, metav1.GetOptions{})
	if err != nil || live.UID != cm.UID || live.DeletionTimestamp != nil {
		return ignoreNotFound(err)
	}
	_, err = r.env.Cloud.Create(ctx, cloud.Resource{Name: cm.Name})
	if errors.Is(err, cloud.ErrExists) && r.bug != "exists-is-failure" {
		err = nil // made by an attempt whose outcome was lost
	}
	if err != nil {
		return err
	}
	_, err = r.update(ctx, cm, func(cm *corev1.ConfigMap) {
		metav1.SetMetaDataAnnotation(&cm.ObjectMeta, registerDone, string(cm.UID))
	})
	return err
}

func (r *registerLoop) unregister(ctx context.Context, cm *corev1.ConfigMap) error {
	err := r.env.Cloud.Delete(ctx, cm.Name)
	if errors.Is(err, cloud.ErrNotFound) && r.bug != "gone-is-failure" {
		err = nil
	}
	if err != nil {
		return err
	}
	_, err = r.update(ctx, cm, func(cm *corev1.ConfigMap) {
		cm.Finalizers = slices.DeleteFunc(cm.Finalizers, func(f string) bool { return f == registerFinalizer })
	})
	return ignoreNotFound(err)
}

func register(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "register",
		Start: startRegister(bug),
		Cloud: cloud.Options{ChosenIDs: true},
		Script: []controllertest.Step{
			userCreates("a", registerLabel), userCreates("b", registerLabel),
			userDeletes("b"), userDeletes("a"),
		},
		Converged: func(s *controllertest.State) error {
			for _, cm := range s.Objects("configmaps") {
				if cm.GetLabels()[registerLabel] != "" && cm.GetAnnotations()[registerDone] != string(cm.GetUID()) {
					return fmt.Errorf("%s is not registered", cm.GetName())
				}
			}
			return accountsOf(registerLabel)(s)
		},
		Invariants: []controllertest.Invariant{{
			Name: "an account's ConfigMap has the finalizer",
			Check: func(s *controllertest.State) error {
				for _, account := range s.Cloud() {
					if cm := s.Get("configmaps", account.Name); cm == nil || !slices.Contains(cm.GetFinalizers(), registerFinalizer) {
						return fmt.Errorf("nothing will delete account %s", account.Name)
					}
				}
				return nil
			},
		}},
	}
}

func registerFamily() Family {
	return Family{Name: "register", Scenario: register, Mutants: []Mutant{{
		Bug: "exists-is-failure", Cause: "AlreadyExists taken for failure",
		Does:      "fails forever if an attempt with a lost response has created the account",
		Reference: "jaegertracing/jaeger-operator#886",
		Plan:      "lost-response@external create a#1", Oracle: controllertest.Quiescence,
	}, {
		Bug: "gone-is-failure", Cause: "NotFound of a deletion taken for failure",
		Does:      "never removes the finalizer if an attempt with a lost response has deleted the account",
		Reference: "coralogix/coralogix-operator#239",
		Plan:      "lost-response@external delete b#1", Oracle: controllertest.Quiescence,
	}, {
		Bug: "seen-by-name", Cause: "memory keyed by name, not by UID",
		Does:      "stores finished objects by name, and confuses a recreated object with the old one",
		Reference: "operator-framework/java-operator-sdk#1337",
		Plan:      "user-recreate(configmaps/a)@external create b#1", Oracle: controllertest.Liveness,
	}}}
}
