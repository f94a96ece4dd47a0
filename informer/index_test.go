package informer_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
)

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
}

func nodes(p *corev1.Pod) []string {
	if p.Spec.NodeName == "" {
		return nil
	}
	return []string{p.Spec.NodeName}
}

func podNames(pods []*corev1.Pod, err error) string {
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(pod("a", "n1"), pod("b", "n1"), pod("c", "n2"), pod("d", ""))
		pods := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods()
		byNode, err := informer.Index(pods, "node", nodes)
		if err != nil {
			t.Fatal(err)
		}
		if got := podNames(byNode("n1")); got != "" {
			t.Errorf("the lookup found %s before the start", got)
		}
		var set informer.Set
		set.Add("pods", pods.Informer())
		ctx, stop := context.WithCancel(quiet(t))
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		<-set.HasSyncedChecker().Done()
		synctest.Wait() // the fake loses what happens between its list and its watch

		// An index of an informer that runs has its objects at once.
		byPrefix, err := informer.Index(pods, "prefixes", func(p *corev1.Pod) []string { return []string{p.Name, "all"} })
		if err != nil {
			t.Fatal(err)
		}
		check := func(want ...string) {
			t.Helper()
			got := []string{podNames(byNode("n1")), podNames(byNode("n2")), podNames(byNode("")), podNames(byPrefix("a")), podNames(byPrefix("all"))}
			if !slices.Equal(got, want) {
				t.Errorf("found %q, want %q", got, want)
			}
		}
		check("a b", "c", "", "a", "a b c d")

		for _, do := range []func() error{
			func() error {
				_, err := client.CoreV1().Pods("default").Update(ctx, pod("a", "n2"), metav1.UpdateOptions{})
				return err
			},
			func() error { return client.CoreV1().Pods("default").Delete(ctx, "c", metav1.DeleteOptions{}) },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		check("b", "a", "", "a", "a b d")
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := informer.Index(pods, "late", nodes); err == nil || !strings.Contains(err.Error(), `informer: index "late": `) {
			t.Errorf("Index() of a stopped informer = %v", err)
		}
	})
}

// transformed has an informer whose objects are no Pods, as a transform can make them.
type transformed struct {
	corev1informers.PodInformer
	inf cache.SharedIndexInformer
}

func (w transformed) Informer() cache.SharedIndexInformer { return w.inf }

func TestIndexRefuses(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	pods := factory.Core().V1().Pods()
	if _, err := informer.Index(pods, "node", nodes); err != nil {
		t.Fatal(err)
	}
	for want, call := range map[string]func() error{
		`informer: Index without an informer`: func() error {
			_, err := informer.Index(corev1informers.PodInformer(nil), "x", nodes)
			return err
		},
		`informer: Index without a name`:        func() error { _, err := informer.Index(pods, "", nodes); return err },
		`informer: index "x" has no function`:   func() error { _, err := informer.Index(pods, "x", (func(*corev1.Pod) []string)(nil)); return err },
		`informer: index "node": indexer confl`: func() error { _, err := informer.Index(pods, "node", nodes); return err },
	} {
		if err := call(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Index() = %v, want %s...", err, want)
		}
	}

	// An object of another type has no keys, and makes no panic.
	other := transformed{pods, factory.Core().V1().Nodes().Informer()}
	lookup, err := informer.Index(other, "node", nodes)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.inf.GetStore().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}); err != nil {
		t.Fatal(err)
	}
	if got := podNames(lookup("n1")); got != "" {
		t.Errorf("found %s", got)
	}
}
