package informer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/informer"
)

// tally counts mutations.
type tally struct {
	informer.Metrics
	calls, mutations int
}

func (*tally) InformerMalformed(string, func() int)  {}
func (*tally) InformerLast(string, func() time.Time) {}

func (c *tally) InformerMutated(_ string, mutations int) {
	c.calls++
	c.mutations += mutations
}

// TestSetFindsMutations: a Set reports the object that the program changes, and not the
// objects that the API server changes.
func TestSetFindsMutations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := watch.NewFakeWithChanSize(100, false)
		inf := listWatch(func() error { return nil }, func(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			if opts.SendInitialEvents != nil {
				return nil, fmt.Errorf("no watch-list")
			}
			return events, nil
		})
		var found []informer.Mutation
		tally := &tally{}
		set := &informer.Set{Metrics: tally, Mutated: func(m informer.Mutation) {
			time.Sleep(time.Nanosecond) // a Run that does not wait for it returns before
			found = append(found, m)
		}}
		set.Add("configmaps", inf)
		ctx, stop := context.WithCancel(quiet(t))
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		synctest.Wait()

		version := 1
		object := func(name string) *corev1.ConfigMap {
			version++
			obj := configMap(name)
			obj.ResourceVersion, obj.Labels = fmt.Sprint(version), map[string]string{"version": fmt.Sprint(version)}
			return obj
		}
		events.Add(object("blue"))
		events.Add(object("red"))
		expect := func(step string, want ...informer.Mutation) {
			t.Helper()
			time.Sleep(2 * informer.Period)
			synctest.Wait()
			if diff := cmp.Diff(want, found); diff != "" {
				t.Errorf("%s: mutations (-want +got):\n%s", step, diff)
			}
			if tally.calls == 0 || tally.mutations != len(want) {
				t.Errorf("%s: %d mutations in %d calls, want %d", step, tally.mutations, tally.calls, len(want))
			}
		}
		expect("no change")
		for range 3 {
			events.Modify(object("red"))
		}
		expect("changes by the server")

		// The object was sampled when it was added. For the race detector an event follows the
		// change.
		cached, _, err := inf.GetStore().GetByKey("default/blue")
		if err != nil {
			t.Fatal(err)
		}
		cached.(*corev1.ConfigMap).Labels["app"] = "secret"
		events.Modify(object("red"))
		want := informer.Mutation{Name: "configmaps", Key: "default/blue", Path: `.metadata.labels["app"]`}
		expect("a change by the program", want)
		if text := want.String(); !strings.Contains(text, `"configmaps"`) || !strings.Contains(text, "default/blue") || !strings.Contains(text, "labels") || strings.Contains(text, "secret") {
			t.Errorf("the text is %s", text)
		}
		if diff := cmp.Diff(map[string]informer.Mutation{"configmaps": want}, set.LastMutations()); diff != "" {
			t.Errorf("the last mutations (-want +got):\n%s", diff)
		}

		// The samples are compared at the end, too.
		events.Modify(object("blue"))
		synctest.Wait()
		if cached, _, err = inf.GetStore().GetByKey("default/blue"); err != nil {
			t.Fatal(err)
		}
		cached.(*corev1.ConfigMap).Namespace = ""
		events.Modify(object("red"))
		synctest.Wait()
		stop()
		if err := <-done; err != nil || len(found) != 2 {
			t.Errorf("Run() = %v after %d mutations, want nil after 2", err, len(found))
		}
		expect("the end", want, informer.Mutation{Name: "configmaps", Key: "default/blue", Path: ".metadata.namespace"})
	})
}
