package external_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// Two processes that both believe to lead care for 40 objects, from caches that are old at times: each
// object has one machine at most, in the size that it wants last, and none is left.
//
// Proves EX3 and EX4.
func TestServerLives(t *testing.T) {
	t.Parallel()
	config := rest.CopyConfig(testserver.Config(t))
	config.QPS = -1
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(testserver.Namespace(t))
	const objects, guard = 40, "example.com/machine"
	s := &service{finds: true, visible: 10 * time.Second}
	var mu sync.Mutex
	s.do = func(call func() error) error {
		<-time.After(rand.N(20 * time.Millisecond)) // until the service has it
		mu.Lock()
		defer mu.Unlock()
		return call()
	}
	// pass is a call of one process, and returns whether nothing is left to do for the object.
	pass := func(ctx context.Context, cached *corev1.ConfigMap) (over bool, wait time.Duration, err error) {
		r := s.machine(cached.Data["size"])
		_, live, err := finalizer.Ensure(ctx, client, cached, guard, func(ctx context.Context, held finalizer.Held[*corev1.ConfigMap]) error {
			return external.Delete(ctx, client, held.Object(), r)
		})
		if err != nil || !live {
			return err == nil, kube.Waits(err), err
		}
		result, err := tryEnsure(ctx, client, cached, r)
		if err != nil {
			return false, kube.Waits(err), err
		}
		return false, min(result.RequeueAfter, 100*time.Millisecond), nil
	}
	var processes sync.WaitGroup
	for n := range objects {
		name := fmt.Sprint("settings-", n)
		obj, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"size": "new"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			processes.Go(func() {
				cached := obj
				for {
					over, wait, err := pass(t.Context(), cached)
					if over || apierrors.IsNotFound(err) {
						return
					}
					// The other process can delete the machine between the question for the newest version and Update.
					raced := apierrors.IsConflict(err) || errors.Is(err, errNoMachine)
					if err != nil && wait == 0 && !raced && !isTerminal(err) {
						t.Error(err)
						return
					}
					<-time.After(min(wait, time.Second) + rand.N(20*time.Millisecond))
					next, err := client.Get(t.Context(), name, metav1.GetOptions{})
					if apierrors.IsNotFound(err) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
					if rand.N(3) > 0 {
						cached = next // else it is old once more
					}
				}
			})
		}
		processes.Go(func() { // the user
			for _, size := range []string{"small", "big"} {
				<-time.After(rand.N(2 * time.Second))
				if _, err := client.Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"data":{"size":%q}}`, size), metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
			}
			token := external.Token(obj, account)
			for deadline := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
				var own []machine
				mu.Lock()
				for _, m := range s.here() {
					if m.token == token {
						own = append(own, *m)
					}
				}
				mu.Unlock()
				if len(own) > 1 {
					t.Errorf("%s has the machines %+v", name, own)
				}
				if len(own) == 1 && own[0].size == "big" {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("%s has the machines %+v, want one that is big", name, own)
					break
				}
			}
			if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	processes.Wait()
	if left := s.here(); len(left) > 0 || s.creates != objects {
		t.Errorf("%d machines are left after %d creates, want none after %d", len(left), s.creates, objects)
	}
}
