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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/watcher"
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
// Proves S2 and S9.
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
// Proves A7 and A8.
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

// hopping is a Source of which each request goes to any of the servers.
type hopping struct {
	tr  *trial
	mu  sync.Mutex
	rng *rand.Rand
}

func (h *hopping) source() watcher.Source[*corev1.ConfigMap] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return watcher.Client[*corev1.ConfigMap](h.tr.any(h.rng).CoreV1().ConfigMaps("default"))
}

func (h *hopping) List(ctx context.Context, o metav1.ListOptions) ([]*corev1.ConfigMap, metav1.ListMeta, error) {
	return h.source().List(ctx, o)
}

// Watch ends its streams itself, so that the next one comes from another server.
func (h *hopping) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := h.source().Watch(ctx, o)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		time.AfterFunc(time.Duration(h.rng.Int64N(int64(400*time.Millisecond))), w.Stop)
	}
	return w, err
}

// watchersUnderFaults runs a watcher of which each request goes to another server, while
// writers create, change and delete objects. No version comes twice or goes back, each
// confirmed version is delivered or covered by a later list, no restored storage is
// reported, and in the end the consumer knows what there is.
//
// Proves W1.
func watchersUnderFaults(t *testing.T, cluster *testserver.Cluster) {
	trials(t, cluster, func(tr *trial) {
		var mu sync.Mutex
		confirmed := map[types.UID][]string{}
		confirm := func(m *corev1.ConfigMap) {
			mu.Lock()
			defer mu.Unlock()
			confirmed[m.UID] = append(confirmed[m.UID], m.ResourceVersion)
		}
		objects := tr.steady.CoreV1().ConfigMaps("default")
		synced := make(chan struct{})
		var acting sync.WaitGroup
		for n := range uint64(2) {
			acting.Go(func() {
				<-synced
				rng := tr.random(n)
				for i := range 20 {
					tr.write(rng, fmt.Sprintf("%s-%d-%d", tr.name, n, rng.IntN(3)), i, confirm)
					nap(tr.ctx, time.Duration(rng.Int64N(int64(200*time.Millisecond))))
				}
				tr.until("create the last object", func(ctx context.Context) error {
					_, err := objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-last-%d", tr.name, n), Labels: map[string]string{"trial": tr.name}}}, metav1.CreateOptions{})
					if apierrors.IsAlreadyExists(err) {
						return nil
					}
					return err
				})
			})
		}
		ctx, cancel := context.WithTimeout(tr.ctx, 90*time.Second)
		defer cancel()
		w := &watcher.RetryWatcher[*corev1.ConfigMap]{
			Source: &hopping{tr: tr, rng: tr.random(9)}, LabelSelector: "trial=" + tr.name,
			BaseDelay: 20 * time.Millisecond, MaxDelay: time.Second, SilenceTimeout: 4 * time.Second,
		}
		known, seen := map[types.UID]*corev1.ConfigMap{}, map[types.UID]map[string]bool{}
		deleted := map[types.UID]bool{}
		var lists []string
		last, lasts := "0", 0
		for event, err := range w.Events(ctx) {
			if err != nil {
				tr.found("the watcher ended: %v", err)
				if len(lists) == 0 {
					close(synced)
				}
				break
			}
			switch event.Type {
			case watcher.Synced:
				if len(lists) == 0 {
					close(synced)
				} else {
					tr.count("listed again")
				}
				lists, last = append(lists, event.ResourceVersion), event.ResourceVersion
			case watcher.Retrying:
				tr.count("retried")
				if errors.Is(event.Err, watcher.ErrRestored) {
					tr.found("no storage was restored: %v", event.Err)
				}
			case watch.Added, watch.Modified, watch.Deleted:
				m := event.Object
				if deleted[m.UID] {
					tr.found("%s of %s after its deletion", event.Type, m.Name)
				}
				if !event.Synthetic {
					tr.count("watched")
					if !newer(m.ResourceVersion, last) {
						tr.found("%s of %s has version %s after %s", event.Type, m.Name, m.ResourceVersion, last)
					}
					last = m.ResourceVersion
				}
				if old := known[m.UID]; (old == nil) != (event.Type == watch.Added) || old != nil && event.Type == watch.Modified && !newer(m.ResourceVersion, old.ResourceVersion) {
					tr.found("%s of %s with version %s after %v", event.Type, m.Name, m.ResourceVersion, old)
				}
				if seen[m.UID] == nil {
					seen[m.UID] = map[string]bool{}
				}
				seen[m.UID][m.ResourceVersion] = true
				known[m.UID] = m
				if event.Type == watch.Deleted {
					deleted[m.UID] = true
					delete(known, m.UID)
				}
				if _, is := m.Labels["trial"]; is && len(m.Data) == 0 && event.Type == watch.Added {
					lasts++
				}
			}
			if lasts == 2 && (!event.Synthetic || event.Type == watcher.Synced) {
				break // not within a list
			}
		}
		acting.Wait()
		for uid, versions := range confirmed {
			for _, v := range versions {
				covered := seen[uid][v]
				for _, list := range lists[min(1, len(lists)):] {
					covered = covered || !newer(v, list)
				}
				if !covered {
					tr.found("version %s of %s was not delivered", v, uid)
				}
			}
		}
		tr.until("compare", func(ctx context.Context) error {
			list, err := objects.List(ctx, metav1.ListOptions{LabelSelector: "trial=" + tr.name})
			if err != nil {
				return err
			}
			have := map[types.UID]string{}
			for _, m := range list.Items {
				have[m.UID] = m.ResourceVersion
			}
			knows := map[types.UID]string{}
			for uid, m := range known {
				knows[uid] = m.ResourceVersion
			}
			if lasts == 2 && !maps.Equal(have, knows) {
				tr.found("the consumer knows %v, there is %v", knows, have)
			}
			return nil
		})
	}, "watched")
}

// newer reports whether version a is after b.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// write creates, changes or deletes an object, and confirms the versions that the server
// has returned. All changes of one object come from one writer.
func (tr *trial) write(rng *rand.Rand, name string, i int, confirm func(*corev1.ConfigMap)) {
	objects := tr.steady.CoreV1().ConfigMaps("default")
	tr.until("write "+name, func(ctx context.Context) error {
		live, err := objects.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			live, err = objects.Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"trial": tr.name}}, Data: map[string]string{"i": strconv.Itoa(i)},
			}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // of an earlier try
			}
		case err == nil && rng.IntN(4) == 0:
			err = objects.Delete(ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				err = nil
			}
			return err
		case err == nil:
			live.Data["i"] = strconv.Itoa(i)
			live, err = objects.Update(ctx, live, metav1.UpdateOptions{})
		}
		if err == nil {
			confirm(live)
		}
		return err
	})
}
