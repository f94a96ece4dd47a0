package filter_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
)

// serverMoves: while objects change and shards move between two replicas, no object is in
// both, one that does not change is always in one, and in the end each is in one.
func serverMoves(t *testing.T, config *rest.Config, client kubernetes.Interface, label string, namespaces []string) {
	t.Helper()
	ranges := shard.Ranges{N: 32}
	wake := make(chan struct{}, 1)
	replicas := []*seer{newSeer(t, config, label, ranges, wake, filter.Objects), newSeer(t, config, label, ranges, wake, filter.Objects)}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	owner := make([]int, ranges.N)
	shards := func(of int) (owned []int) {
		for s, i := range owner {
			if i == of {
				owned = append(owned, s)
			}
		}
		return owned
	}
	replicas[0].move(t, replicas[0].view.Add, shards(0), shards(0))
	still := settleAll(t, client, label, replicas...)

	churn := func() {
		for range 20 {
			i := r.IntN(40)
			c := client.CoreV1().ConfigMaps(namespaces[i%5])
			o := configMap(fmt.Sprintf("churn-%d", i), namespaces[0])
			var err error
			switch r.IntN(3) {
			case 0:
				err = c.Delete(t.Context(), o.Name, metav1.DeleteOptions{})
			case 1:
				_, err = c.Create(t.Context(), o, metav1.CreateOptions{})
			default:
				o.Data["at"] = fmt.Sprint(r.Uint64())
				_, err = c.Update(t.Context(), o, metav1.UpdateOptions{})
			}
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
				t.Error(err)
				return
			}
		}
	}
	for range *seenMoves {
		for s := range owner {
			if r.IntN(4) == 0 {
				owner[s] = 1 - owner[s]
			}
		}
		var wait sync.WaitGroup
		wait.Go(churn)
		// A shard is removed before the other replica adds it.
		var kept [2][]int
		for i, replica := range replicas {
			var lost []int
			for _, s := range replica.owned {
				if owner[s] == i {
					kept[i] = append(kept[i], s)
				} else {
					lost = append(lost, s)
				}
			}
			replica.move(t, replica.view.Remove, kept[i], lost)
		}
		check(t, replicas...)
		for i, replica := range replicas {
			gained := slices.DeleteFunc(shards(i), func(s int) bool { return slices.Contains(kept[i], s) })
			replica.move(t, replica.view.Add, shards(i), gained)
		}
		cached, _ := check(t, replicas...)
		wait.Wait()
		for uid, version := range still {
			if cached[uid] != version {
				t.Errorf("the object with uid %s is in no cache: %q, want version %q", uid, cached[uid], version)
			}
		}
		if t.Failed() {
			break
		}
	}
	settleAll(t, client, label, replicas...)
}

// serverChildren: children are in the cache of the replica that has their controller.
func serverChildren(t *testing.T, config *rest.Config, client kubernetes.Interface, namespace string) {
	t.Helper()
	configMaps := client.CoreV1().ConfigMaps(namespace)
	owners := make([]*corev1.ConfigMap, 12)
	each(t, len(owners), func(i int) (err error) {
		owners[i], err = configMaps.Create(t.Context(), configMap(fmt.Sprintf("owner-%d", i), "no"), metav1.CreateOptions{})
		return err
	})
	children := make([]*corev1.ConfigMap, 36)
	controlledBy := func(o *corev1.ConfigMap) []metav1.OwnerReference {
		return []metav1.OwnerReference{*metav1.NewControllerRef(o, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	}
	each(t, len(children), func(i int) (err error) {
		o := configMap(fmt.Sprintf("child-%d", i), "child-of-"+namespace)
		o.OwnerReferences = controlledBy(owners[i%12])
		children[i], err = configMaps.Create(t.Context(), o, metav1.CreateOptions{})
		return err
	})
	wake := make(chan struct{}, 1)
	label := "sees=child-of-" + namespace
	replicas := []*seer{newSeer(t, config, label, two, wake, filter.Children), newSeer(t, config, label, two, wake, filter.Children)}
	for i, r := range replicas {
		r.own(t, i)
	}
	settleAll(t, client, label, replicas...)
	each(t, len(children), func(i int) error { // each gets another controller
		o := children[i].DeepCopy()
		o.OwnerReferences = controlledBy(owners[(i+1+i/12)%12])
		_, err := configMaps.Update(t.Context(), o, metav1.UpdateOptions{})
		return err
	})
	settleAll(t, client, label, replicas...)
}
