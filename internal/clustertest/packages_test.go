package clustertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

// make creates the ConfigMap of a trial and returns it.
func (tr *trial) make() (made *corev1.ConfigMap) {
	tr.until("create", func(ctx context.Context) (err error) {
		maps := tr.steady.CoreV1().ConfigMaps("default")
		made, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: tr.name}, Data: map[string]string{"user": "0"}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			made, err = maps.Get(ctx, tr.name, metav1.GetOptions{})
		}
		return err
	})
	return made
}

// remove deletes the ConfigMap.
func (tr *trial) remove() {
	tr.until("delete", func(ctx context.Context) error {
		err := tr.steady.CoreV1().ConfigMaps("default").Delete(ctx, tr.name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// modify changes the ConfigMap with its resource version. It reports whether it exists.
func (tr *trial) modify(what string, change func(*corev1.ConfigMap)) (exists bool) {
	tr.until(what, func(ctx context.Context) error {
		maps := tr.steady.CoreV1().ConfigMaps("default")
		live, err := maps.Get(ctx, tr.name, metav1.GetOptions{})
		if err == nil {
			change(live)
			_, err = maps.Update(ctx, live, metav1.UpdateOptions{})
		}
		exists = err == nil
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return exists
}

// finalizersUnderFaults runs two controllers, one process after the other of each, that
// guard something external by a finalizer of their own, next to a finalizer of a user. The
// user's finalizer is never lost, a finalizer stays while its cleanup fails, and with the
// object everything external is gone.
//
// Proves F2 and F5.
func finalizersUnderFaults(t *testing.T, cluster *testserver.Cluster) {
	const hold = "users.example.com/hold"
	trials(t, cluster, func(tr *trial) {
		if tr.make() == nil {
			return
		}
		tr.modify("hold", func(m *corev1.ConfigMap) {
			if !finalizer.Has(m, hold) {
				m.Finalizers = append(m.Finalizers, hold)
			}
		})
		gone := make(chan struct{})
		var acting sync.WaitGroup
		for n := range uint64(2) {
			acting.Go(func() { guard(tr, tr.random(n), fmt.Sprintf("controller-%d.example.com/thing", n), gone) })
		}
		rng := tr.random(9)
		deleted, released := 3+rng.IntN(10), 8+rng.IntN(15)
		for step := range released {
			if step == deleted {
				tr.remove()
			}
			tr.until("look at the hold", func(ctx context.Context) error {
				live, err := tr.steady.CoreV1().ConfigMaps("default").Get(ctx, tr.name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) || err == nil && !finalizer.Has(live, hold) {
					tr.found("the user's finalizer is lost: %v, %v", live.Finalizers, err)
					return nil
				}
				return err
			})
			nap(tr.ctx, 100*time.Millisecond)
		}
		tr.remove()
		tr.modify("release the hold", func(m *corev1.ConfigMap) {
			var others []string
			for _, f := range m.Finalizers {
				if f != hold {
					others = append(others, f)
				}
			}
			m.Finalizers = others
		})
		tr.until("await the end of the object", func(ctx context.Context) error {
			live, err := tr.steady.CoreV1().ConfigMaps("default").Get(ctx, tr.name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, fmt.Errorf("it still has %q", live.Finalizers))
		})
		close(gone)
		acting.Wait()
	}, "created", "cleaned up")
}

// guard is a controller of the ConfigMap until gone is closed.
func guard(tr *trial, rng *rand.Rand, name string, gone <-chan struct{}) {
	var exists, cleaned bool // the external thing
	kube := tr.any(rng)
	for {
		select {
		case <-gone:
			if exists {
				tr.found("what %s guards is left after the object", name)
			}
			return
		default:
		}
		if rng.IntN(4) == 0 {
			kube = tr.any(rng) // another process, with another server
		}
		objects := kube.CoreV1().ConfigMaps("default")
		ctx, cancel := tr.brief()
		live, err := objects.Get(ctx, tr.name, stale())
		if err == nil {
			failed := false
			var held finalizer.Held[*corev1.ConfigMap]
			var ok bool
			held, ok, err = finalizer.Ensure(ctx, objects, live, name, func(context.Context, finalizer.Held[*corev1.ConfigMap]) error {
				if rng.IntN(3) == 0 {
					failed = true
					return errors.New("the service fails")
				}
				exists, cleaned = false, true
				tr.count("cleaned up")
				return nil
			})
			if ok {
				if _, err = consistency.ConfirmLive(ctx, objects, held.Object()); err == nil {
					exists = true
					tr.count("created")
				}
			}
			switch {
			case failed:
				tr.count("cleanup failed")
				// A Remove without a response, after a cleanup, may arrive any time.
				if live, err := tr.steady.CoreV1().ConfigMaps("default").Get(ctx, tr.name, metav1.GetOptions{}); !cleaned && (apierrors.IsNotFound(err) || err == nil && !finalizer.Has(live, name)) {
					tr.found("%s is gone although its cleanup failed: %v", name, err)
				}
			case apierrors.IsConflict(err):
				tr.count("conflict")
			case !expected(err):
				tr.found("%s: %v", name, err)
			}
		}
		cancel()
		nap(tr.ctx, time.Duration(rng.Int64N(int64(80*time.Millisecond))))
	}
}

// statusUnderFaults runs two controllers that write a condition each to one object, from
// copies of any age and through any server, while a user changes the spec. No condition is
// lost, and neither a result nor an observedGeneration goes back.
//
// Proves S2 and S3.
func statusUnderFaults(t *testing.T, cluster *testserver.Cluster) {
	trials(t, cluster, func(tr *trial) {
		budgets := tr.steady.PolicyV1().PodDisruptionBudgets("default")
		var made *policyv1.PodDisruptionBudget
		tr.until("create", func(ctx context.Context) (err error) {
			made, err = budgets.Create(ctx, &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Name: tr.name},
				Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
			}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				made, err = budgets.Get(ctx, tr.name, metav1.GetOptions{})
			}
			return err
		})
		if made == nil {
			return
		}
		ctx, stop := context.WithTimeout(tr.ctx, 2*time.Second)
		defer stop()
		var judging, acting sync.WaitGroup
		watching, unwatch := context.WithCancel(tr.ctx)
		before := made
		judging.Go(func() {
			history(watching, tr, budgets.Watch, made.ResourceVersion, func(event watch.Event) {
				now, ok := event.Object.(*policyv1.PodDisruptionBudget)
				if !ok || now.Name != tr.name || event.Type == watch.Deleted {
					return
				}
				if now.Status.ObservedGeneration < before.Status.ObservedGeneration || now.Status.ObservedGeneration > now.Generation {
					tr.found("observedGeneration went from %d to %d in generation %d", before.Status.ObservedGeneration, now.Status.ObservedGeneration, now.Generation)
				}
				for _, old := range before.Status.Conditions {
					c := meta.FindStatusCondition(now.Status.Conditions, old.Type)
					if c == nil {
						tr.found("the condition %s is lost", old.Type)
						continue
					}
					was, _ := strconv.Atoi(old.Message)
					is, _ := strconv.Atoi(c.Message)
					if is < was || c.ObservedGeneration < old.ObservedGeneration {
						tr.found("the condition %s went back from %+v to %+v", old.Type, old, c)
					}
				}
				before = now
			})
		})
		for n := range uint64(2) {
			acting.Go(func() {
				rng, name := tr.random(n), fmt.Sprintf("controller-%d.example.com/Ready", n)
				for result := 1; ctx.Err() == nil; result++ {
					kube := tr.any(rng).PolicyV1().PodDisruptionBudgets("default")
					request, cancel := tr.brief()
					live, err := kube.Get(request, tr.name, stale())
					if err == nil {
						change := func(b *policyv1.PodDisruptionBudget) error {
							if n == 0 {
								b.Status.ObservedGeneration = b.Generation
							}
							return status.Set(&b.Status.Conditions, b.Generation, status.True(name, "Tried", strconv.Itoa(result)))
						}
						if n == 0 {
							_, err = status.Update(request, kube, live, change)
						} else {
							_, err = status.Patch(request, kube, live, change)
						}
						switch {
						case err == nil:
							tr.count("written")
						case apierrors.IsConflict(err):
							tr.count("conflict")
						case !expected(err):
							tr.found("%s: %v", name, err)
						}
					}
					cancel()
					nap(ctx, time.Duration(rng.Int64N(int64(60*time.Millisecond))))
				}
			})
		}
		acting.Go(func() {
			rng := tr.random(9)
			for n := int32(1); ctx.Err() == nil; n++ {
				tr.until("change the spec", func(request context.Context) error {
					live, err := budgets.Get(request, tr.name, metav1.GetOptions{})
					if err == nil {
						live.Spec.MinAvailable = new(intstr.FromInt32(n))
						_, err = budgets.Update(request, live, metav1.UpdateOptions{})
					}
					return err
				})
				nap(ctx, time.Duration(rng.Int64N(int64(200*time.Millisecond))))
			}
		})
		acting.Wait()
		unwatch()
		judging.Wait()
	}, "written")
}

// history calls see for each event of a collection of the steady server after a version,
// until ctx is done.
func history(ctx context.Context, tr *trial, open func(context.Context, metav1.ListOptions) (watch.Interface, error), version string, see func(watch.Event)) {
	for ctx.Err() == nil {
		w, err := open(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + tr.name, ResourceVersion: version})
		if err != nil {
			nap(ctx, 100*time.Millisecond)
			continue
		}
		for event := range w.ResultChan() {
			if event.Type == watch.Error {
				if err := apierrors.FromObject(event.Object); apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
					tr.found("the judge has missed events: %v", err)
					return
				}
				break
			}
			if o, err := meta.Accessor(event.Object); err == nil {
				version = o.GetResourceVersion()
			}
			see(event)
		}
		w.Stop()
	}
}

// appliesUnderFaults runs two controllers that apply keys of one ConfigMap, from copies of
// any age and through any server, next to a user's key. The user's key is never lost nor
// put back, a skip is right for the copy that it saw, and in the end the object has what
// all want. In half of the trials the user deletes the object: it never comes back.
//
// Proves A3 and A4.
func appliesUnderFaults(t *testing.T, cluster *testserver.Cluster) {
	trials(t, cluster, func(tr *trial) {
		made := tr.make()
		if made == nil {
			return
		}
		rng := tr.random(9)
		deletes := rng.IntN(2) == 0
		ctx, stop := context.WithTimeout(tr.ctx, 2*time.Second)
		defer stop()
		watching, unwatch := context.WithCancel(tr.ctx)
		var judging, acting sync.WaitGroup
		last := 0
		judging.Go(func() {
			history(watching, tr, tr.steady.CoreV1().ConfigMaps("default").Watch, made.ResourceVersion, func(event watch.Event) {
				m, ok := event.Object.(*corev1.ConfigMap)
				if !ok || m.Name != tr.name {
					return
				}
				if m.UID != made.UID {
					tr.found("a second object was created")
				}
				n, err := strconv.Atoi(m.Data["user"])
				if err != nil || n < last {
					tr.found("the user's key went from %d to %q", last, m.Data["user"])
				}
				last = n
			})
		})
		wants := [2]map[string]string{}
		copies := [2]*corev1.ConfigMap{made, made} // of each controller's cache
		apply := func(ctx context.Context, kube kubernetes.Interface, n int, read func(context.Context) (*corev1.ConfigMap, error)) (applied bool, err error) {
			objects := kube.CoreV1().ConfigMaps("default")
			live, err := read(ctx)
			if err != nil {
				return false, err
			}
			copies[n] = live
			manager := ssa.FieldManager(fmt.Sprintf("controller-%d", n))
			_, applied, err = ssa.ApplyChanged(ctx, manager, objects.Apply, applycorev1.ConfigMap(tr.name, "default").WithData(wants[n]), live, applycorev1.ExtractConfigMap)
			if err == nil && !applied {
				tr.count("skipped")
				for k, v := range wants[n] {
					if live.Data[k] != v {
						tr.found("%s skipped the apply of %v to %v", manager, wants[n], live.Data)
					}
				}
			}
			return applied, err
		}
		for n := range 2 {
			acting.Go(func() {
				rng := tr.random(uint64(n))
				for ctx.Err() == nil {
					if wants[n] == nil || rng.IntN(3) == 0 {
						wants[n] = map[string]string{fmt.Sprint("key-", n): strconv.Itoa(rng.IntN(3))}
						if rng.IntN(2) == 0 {
							wants[n][fmt.Sprint("more-", n)] = "x"
						}
					}
					request, cancel := tr.brief()
					kube := tr.any(rng)
					applied, err := apply(request, kube, n, func(ctx context.Context) (*corev1.ConfigMap, error) {
						if rng.IntN(3) == 0 {
							return copies[n], nil // no event has come
						}
						return kube.CoreV1().ConfigMaps("default").Get(ctx, tr.name, stale())
					})
					cancel()
					switch {
					case applied && err == nil:
						tr.count("applied")
					case errors.Is(err, ssa.ErrUIDMismatch):
						tr.count("the object is gone")
					case !expected(err):
						tr.found("controller-%d: %v", n, err)
					}
					nap(ctx, time.Duration(rng.Int64N(int64(60*time.Millisecond))))
				}
			})
		}
		acting.Go(func() {
			rng := tr.random(8)
			for n := 1; ctx.Err() == nil; n++ {
				if deletes && n == 8 {
					tr.remove()
					return
				}
				tr.modify("change the user's key", func(m *corev1.ConfigMap) { m.Data["user"] = strconv.Itoa(n) })
				nap(ctx, time.Duration(rng.Int64N(int64(150*time.Millisecond))))
			}
		})
		acting.Wait()
		nap(tr.ctx, 3*time.Second) // a request without a response arrives when its fault ends
		if deletes {
			tr.remove()
			tr.until("look", func(ctx context.Context) error {
				live, err := tr.steady.CoreV1().ConfigMaps("default").Get(ctx, tr.name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return errors.Join(err, fmt.Errorf("the deleted object is back: %v", live.Data))
			})
		} else {
			for n := range 2 {
				tr.until("settle", func(ctx context.Context) error {
					applied, err := apply(ctx, tr.steady, n, func(ctx context.Context) (*corev1.ConfigMap, error) {
						return tr.steady.CoreV1().ConfigMaps("default").Get(ctx, tr.name, metav1.GetOptions{})
					})
					if err == nil && applied {
						err = errors.New("an apply after an apply is not skipped")
					}
					return err
				})
			}
			tr.modify("look", func(m *corev1.ConfigMap) {
				want := map[string]string{"user": m.Data["user"]}
				maps.Copy(want, wants[0])
				maps.Copy(want, wants[1])
				if !maps.Equal(m.Data, want) {
					tr.found("in the end there is %v, want %v", m.Data, want)
				}
			})
		}
		unwatch()
		judging.Wait()
	}, "applied", "skipped")
}
