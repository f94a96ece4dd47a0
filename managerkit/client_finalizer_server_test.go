package managerkit_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
)

// adders are ways to add a finalizer to a copy of an object.
func adders(c client.Client, sites *managerkit.Client[*clientSite], name string) map[string]func(context.Context, *clientSite) error {
	return map[string]func(context.Context, *clientSite) error{
		"finalizer.Ensure": func(ctx context.Context, site *clientSite) error {
			_, _, err := finalizer.Ensure(ctx, sites, site, name, func(context.Context, finalizer.Held[*clientSite]) error { return nil })
			return err
		},
		"AddFinalizer, Update": func(ctx context.Context, site *clientSite) error {
			controllerutil.AddFinalizer(site, name)
			return c.Update(ctx, site)
		},
		"AddFinalizer, Patch": func(ctx context.Context, site *clientSite) error {
			before := client.MergeFrom(site.DeepCopy())
			controllerutil.AddFinalizer(site, name)
			return c.Patch(ctx, site, before)
		},
	}
}

// TestServerClientKeepsFinalizers adds a finalizer to copies that another writer made
// stale, in three ways. It counts the conflicts, and the finalizers of the other writer
// that are lost.
func TestServerClientKeepsFinalizers(t *testing.T) {
	installClientSites(t)
	const (
		n     = 8
		mine  = "client.example.com/mine"
		other = "other.example.com/f"
	)
	ctx, namespace := t.Context(), testserver.Namespace(t)
	c := newUncached(t, testserver.Config(t))
	sites := newSites(t, c).Namespace(namespace)
	type figures struct{ conflicts, lost int }
	for _, tt := range []struct {
		change string
		make   func(*clientSite) error
		want   map[string]figures
	}{
		{
			change: "the spec",
			make: func(site *clientSite) error {
				_, err := sites.Patch(ctx, site.Name, types.MergePatchType, hostPatch("second"), metav1.PatchOptions{})
				return err
			},
			want: map[string]figures{"finalizer.Ensure": {}, "AddFinalizer, Update": {conflicts: n}, "AddFinalizer, Patch": {}},
		},
		{
			change: "the finalizers",
			make: func(site *clientSite) error {
				_, err := finalizer.Add(ctx, sites, site, other)
				return err
			},
			want: map[string]figures{"finalizer.Ensure": {conflicts: n}, "AddFinalizer, Update": {conflicts: n}, "AddFinalizer, Patch": {lost: n}},
		},
	} {
		for way, add := range adders(c, sites, mine) {
			got := figures{}
			for range n {
				stale, err := sites.Create(ctx, &clientSite{ObjectMeta: metav1.ObjectMeta{GenerateName: "f-"}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if err := tt.make(stale); err != nil {
					t.Fatal(err)
				}
				before, err := sites.Get(ctx, stale.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				err = add(ctx, stale)
				if apierrors.IsConflict(err) {
					got.conflicts++
				} else if err != nil {
					t.Fatalf("%s: %v", way, err)
				}
				after, getErr := sites.Get(ctx, stale.Name, metav1.GetOptions{})
				if getErr != nil {
					t.Fatal(getErr)
				}
				if finalizer.Has(before, other) && !finalizer.Has(after, other) {
					got.lost++
				}
				if err == nil && !finalizer.Has(after, mine) || after.Spec.Host != before.Spec.Host {
					t.Errorf("%s: %+v became %+v", way, before, after)
				}
			}
			t.Logf("another writer changed %s, then %s: %d conflicts, %d finalizers lost, of %d", tt.change, way, got.conflicts, got.lost, n)
			if got != tt.want[way] {
				t.Errorf("another writer changed %s, then %s: got %+v, want %+v", tt.change, way, got, tt.want[way])
			}
		}
	}
}

// TestServerClientKeepsFinalizersAtOnce adds and removes finalizers of one object by
// several writers at once, beside changes of the spec.
func TestServerClientKeepsFinalizersAtOnce(t *testing.T) {
	installClientSites(t)
	const writers, rounds = 4, 5
	ctx, namespace := t.Context(), testserver.Namespace(t)
	sites := liveSites(t, testserver.Config(t), namespace)
	created := createSite(t, sites, "a")
	var wg sync.WaitGroup
	for w := range writers {
		name := fmt.Sprintf("client.example.com/writer-%d", w)
		cleanup := func(context.Context, finalizer.Held[*clientSite]) error { return nil }
		// retry repeats call with the newest object, as a reconcile function does.
		retry := func(site *clientSite, call func(*clientSite) (*clientSite, error)) *clientSite {
			for {
				next, err := call(site)
				if err == nil {
					return next
				}
				if !apierrors.IsConflict(err) {
					t.Error(err)
					return site
				}
				if site, err = sites.Get(ctx, "a", metav1.GetOptions{}); err != nil {
					t.Error(err)
					return site
				}
			}
		}
		wg.Go(func() {
			site := created
			for round := range rounds {
				site = retry(site, func(site *clientSite) (*clientSite, error) {
					held, _, err := finalizer.Ensure(ctx, sites, site, name, cleanup)
					if err != nil {
						return nil, err
					}
					return held.Object(), nil
				})
				live, err := sites.Get(ctx, "a", metav1.GetOptions{})
				if err != nil || !finalizer.Has(live, name) {
					t.Errorf("round %d: finalizer %s is lost: %v", round, name, err)
				}
				if _, err := sites.Patch(ctx, "a", types.MergePatchType, hostPatch(fmt.Sprint(w, round)), metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
				if round < rounds-1 {
					site = retry(site, func(site *clientSite) (*clientSite, error) { return finalizer.Remove(ctx, sites, site, name) })
				}
			}
		})
	}
	wg.Wait()
	live, err := sites.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || len(live.Finalizers) != writers {
		t.Errorf("got %v, %v; want a finalizer of each of %d writers", live.Finalizers, err, writers)
	}
}
