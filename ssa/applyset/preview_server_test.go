package applyset_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// TestServerSetPreview: a set loses objects of three stages, needs a deletion for a change, and has objects whose kind or
// namespace comes with it. A preview reports all of that in one call, and the real call does it.
func TestServerSetPreview(t *testing.T) {
	t.Parallel()
	g, a := newGallery(t), newArena(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	s.Mapper = setMapper(a.kind())
	fixed := func(color string) applyset.Member {
		m := wantConfigMap(g.two, "fixed", color)
		m.Object = object(`{"apiVersion":"v1","kind":"ConfigMap","immutable":true,"metadata":{"name":"fixed","namespace":%q},"data":{"color":%q}}`, g.two, color)
		m.Recreate = true
		return m
	}
	if _, err := s.Apply(t.Context(), parent, wantConfigMap(g.one, "kept", "red"), fixed("red"),
		applyset.Member{Object: place{"Deployment", g.one, "old"}.object("red")},
		wantKind("v1", "Secret", g.one, "old"), wantKind("v1", "ServiceAccount", g.one, "old")); err != nil {
		t.Fatal(err)
	}
	wanted := []applyset.Member{
		wantKind(a.group+"/v1", "Paint", g.one, "new"), wantConfigMap(a.name, "new", "red"), fixed("blue"), wantConfigMap(g.one, "kept", "blue"),
		{Object: object(paintCRD, a.group, a.group)}, wantKind("v1", "Namespace", "", a.name),
	}
	before := testserver.Stored(t, testserver.Config(t), g.one)

	previewed := func(call func(ctx context.Context, s *applyset.Set) ([]applyset.Result, error)) []string {
		t.Helper()
		p := &preview.Preview{}
		config := rest.CopyConfig(testserver.Config(t))
		config.Wrap(p.Transport)
		s := newSet(t, config)
		s.Mapper = setMapper(a.kind())
		ctx, end := p.Begin(t.Context(), "sets", "parent")
		begun := time.Now()
		results, err := call(ctx, s)
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("the preview waited: it took %v", took)
		}
		end(err)
		for _, r := range results {
			if r.Action == applyset.Pending {
				t.Errorf("%s %s is Pending: %s", r.Kind.Kind, r.Name, r.Reason)
			}
		}
		var all []string
		report := p.Report()
		for _, c := range report.Calls {
			for _, change := range c.Changes {
				all = append(all, fmt.Sprint(change.Action, " ", change.Resource, " ", change.Name))
			}
		}
		if err != nil || report.ExitCode() != 2 || len(report.Calls) != 1 {
			t.Errorf("exit code %d, %d calls, error %v", report.ExitCode(), len(report.Calls), err)
		}
		if diff := cmp.Diff(before, testserver.Stored(t, testserver.Config(t), g.one)); diff != "" {
			t.Errorf("the preview has changed objects: (-before +after)\n%s", diff)
		}
		return all
	}
	got := previewed(func(ctx context.Context, s *applyset.Set) ([]applyset.Result, error) {
		return s.Apply(ctx, g.read(t, parent), wanted...)
	})
	want := []string{
		"create customresourcedefinitions.apiextensions.k8s.io paints." + a.group, "create namespaces " + a.name,
		"create configmaps new", "delete configmaps fixed", "create configmaps fixed", "change configmaps kept",
		"create paints." + a.group + " new",
		"delete deployments.apps old", "delete secrets old", "delete serviceaccounts old",
		"change configmaps parent",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the report of Apply: (-want +got)\n%s", diff)
	}

	got = previewed(func(ctx context.Context, s *applyset.Set) ([]applyset.Result, error) {
		return s.Delete(ctx, g.read(t, parent))
	})
	slices.Sort(got)
	want = []string{"delete configmaps fixed", "delete configmaps kept", "delete deployments.apps old", "delete secrets old", "delete serviceaccounts old"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the report of Delete: (-want +got)\n%s", diff)
	}

	results, err := s.Apply(t.Context(), g.read(t, parent), wanted...)
	wantActions := "ConfigMap fixed Recreated, ConfigMap kept Changed, ConfigMap new Created, CustomResourceDefinition paints." + a.group + " Created, " +
		"Deployment old Pruned, Namespace " + a.name + " Created, Paint new Created, Secret old Pruned, ServiceAccount old Pruned"
	if got := actions(results); err != nil || got != wantActions {
		t.Errorf("the real call: %s, error %v", got, err)
	}
}
