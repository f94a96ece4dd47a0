package contender_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

func configMap(name, version string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// TestCut checks that a call whose context ends before its work is counted, and no other call.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := contender.NewProcess(time.Second)
		begin := time.Now()
		if err := p.Reconciled(t.Context(), configMap("a", "1")); err != nil || time.Since(begin) != time.Second || p.Cut() != 0 {
			t.Errorf("a whole call: got error %v after %v and %d cut calls, want none after 1s", err, time.Since(begin), p.Cut())
		}
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(stopped)
		if err := p.Reconciled(ctx, configMap("a", "1")); !errors.Is(err, stopped) || p.Cut() != 1 {
			t.Errorf("a call whose context is done: got error %v and %d cut calls, want its cause and 1", err, p.Cut())
		}
	})
}

// TestSights checks that sights are recorded since the first Command, and that a Command waits
// until its version or a newer one is read.
func TestSights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := contender.NewProcess(0)
		read := func(name, version string) {
			if err := p.Reconciled(t.Context(), configMap(name, version)); err != nil {
				t.Error(err)
			}
		}
		read("a", "1")
		if got := p.Take(); len(got) != 0 {
			t.Errorf("before a Command: got %v, want no sights", got)
		}
		p.Wait(t.Context(), contender.Command{})
		returned := make(chan struct{})
		go func() {
			p.Wait(t.Context(), contender.Command{Name: "a", Version: "10"})
			close(returned)
		}()
		waits := func(want bool, after string) {
			synctest.Wait()
			select {
			case <-returned:
				if want {
					t.Errorf("Wait returned after %s, want it to wait", after)
				}
			default:
				if !want {
					t.Errorf("Wait waits after %s, want it to return", after)
				}
			}
		}
		waits(true, "no read")
		read("a", "9")
		waits(true, "a read of an older version")
		read("b", "10")
		waits(true, "a read of another object")
		time.Sleep(time.Second)
		now := time.Now().UnixNano()
		read("a", "11")
		waits(false, "a read of a newer version")
		p.Wait(t.Context(), contender.Command{Name: "a", Version: "10"}) // which was read
		got := p.Take()
		if want := (contender.Sight{Name: "a", Version: "11", At: now}); len(got) != 3 || got[2] != want {
			t.Errorf("got %v, want 3 sights with %v at the end", got, want)
		}
		if got := p.Take(); len(got) != 0 {
			t.Errorf("after Take: got %v, want no sights", got)
		}
	})
}
