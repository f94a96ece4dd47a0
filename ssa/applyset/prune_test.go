package applyset_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// If another user changes a former member and then deletes it, the deletion of the Set meets
// a Conflict, and the read after it an absent object. If the API server stops serving the
// kind, the object is Pending.
func TestSetPruneAbsent(t *testing.T) {
	absent := apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "object-0")
	absent.ErrStatus.Details.Kind = "configmaps"
	unserved := apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Resource: "configmaps"}, "object-0", "404 page not found", 0, true)
	for name, tt := range map[string]struct {
		response error
		want     string
	}{
		"absent":   {absent, ""},
		"unserved": {unserved, "ConfigMap object-0 Pending"},
	} {
		t.Run(name, func(t *testing.T) {
			s, client, parent, wanted := cached(1)
			if _, err := s.Apply(t.Context(), parent, wanted...); err != nil {
				t.Fatal(err)
			}
			live := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
			live.Name, live.Namespace, live.UID, live.ResourceVersion = "object-0", "a", "uid-0", "9"
			live.Labels = map[string]string{partOf: parent.Labels[idLabel]}
			reads := 0
			client.PrependReactor("get", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.(clienttesting.GetAction).GetName() != "object-0" {
					return false, nil, nil
				}
				if reads++; reads == 1 {
					return true, live, nil
				}
				return true, nil, tt.response
			})
			client.PrependReactor("delete", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "object-0", errors.New("changed"))
			})
			s.MaxPrunePercent = 100
			results, err := s.Apply(t.Context(), parent)
			if got := actions(results); err != nil || !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("results %q, error %v; want %q", got, err, tt.want)
			}
		})
	}
}

// If another former member of the stage is gone, an object whose kind was not served at its
// read is Pending, and the next call finds it.
func TestSetPruneUnserved(t *testing.T) {
	s, client, parent, wanted := cached(2)
	second := wanted[1].Object.(*unstructured.Unstructured).DeepCopy()
	second.SetNamespace("b")
	live := wanted[1].Live.(*unstructured.Unstructured)
	live.SetNamespace("b")
	wanted[1].Object = second
	parent.Annotations[namespaces] = "b"
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	if err := client.Tracker().Update(configMaps, &metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta}, "a"); err != nil {
		t.Fatal(err)
	}
	for _, m := range wanted {
		err := client.Tracker().Add(&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: metav1.ObjectMeta{
			Name: m.Live.GetName(), Namespace: m.Live.GetNamespace(), UID: m.Live.GetUID(), ResourceVersion: m.Live.GetResourceVersion(), Labels: m.Live.GetLabels(),
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Apply(t.Context(), parent, wanted...); err != nil {
		t.Fatal(err)
	}
	served := false
	client.PrependReactor("get", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() != "b" || served {
			return false, nil, nil
		}
		return true, nil, apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Resource: "configmaps"}, "object-1", "404 page not found", 0, true)
	})
	s.MaxPrunePercent = 100
	for _, want := range []string{"ConfigMap object-0 Pruned, ConfigMap object-1 Pending", "ConfigMap object-1 Pruned"} {
		results, err := s.Apply(t.Context(), parent)
		if got := actions(results); err != nil || got != want {
			t.Errorf("results %q, error %v; want %q", got, err, want)
		}
		served = true
	}
}

// A wanted object in a version that the API server does not serve yet can exist in another one.
// So prune leaves its CustomResourceDefinition, and not that of another group.
//
// Proves AS10.
func TestSetPruneDefinitionOfPending(t *testing.T) {
	s, _, parent, _ := cached(0)
	parent.Annotations[groupKinds] = "CustomResourceDefinition.apiextensions.k8s.io,Paint.example.com"
	s.Metadata = metadataClient(
		&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta},
		member(parent, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "paints.example.com"),
		member(parent, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "paints.other.example.com"),
		member(parent, "example.com/v1", "Paint", "a", "one"),
	)
	s.Mapper = setMapper(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"})
	s.MaxPrunePercent, s.PruneCRDs = 100, true
	one := wantKind("example.com/v2", "Paint", "a", "one")
	one.Wait = true
	results, err := s.Plan(t.Context(), parent, one)
	want := "CustomResourceDefinition paints.example.com Kept, CustomResourceDefinition paints.other.example.com Pruned, Paint one Pending"
	if got := actions(results); err != nil || got != want {
		t.Errorf("results %q, error %v; want %q", got, err, want)
	}
	for _, r := range results {
		if r.Action == applyset.Kept && r.Reason != "its deletion would delete the wanted Paint one if it defines that kind" {
			t.Errorf("the reason is %q", r.Reason)
		}
	}
}

// A CustomResourceDefinition of a version that the API server does not serve is Pending with Wait, like
// other objects, also if the Mapper still knows the version.
func TestSetPendingDefinition(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1beta1", Kind: "CustomResourceDefinition"}
	for name, known := range map[string]bool{"unknown to the Mapper": false, "known to the Mapper": true} {
		t.Run(name, func(t *testing.T) {
			s, _, parent, _ := cached(0)
			parent.Annotations[groupKinds] = "CustomResourceDefinition.apiextensions.k8s.io,ConfigMap"
			s.Metadata = metadataClient(&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta})
			mapper := setMapper()
			if known {
				mapper.Add(gvk, meta.RESTScopeRoot)
			}
			s.Mapper = mapper
			s.Client = fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
				if name == "one" {
					return object(`{"metadata":{"name":"one","uid":"u"}}`), nil
				}
				return nil, apierrors.NewGenericServerResponse(404, "patch", schema.GroupResource{Group: gvk.Group, Resource: "customresourcedefinitions"}, name, "404 page not found", 0, true)
			}}
			definition := object(paintCRD, "example.com", "example.com")
			definition.SetAPIVersion(gvk.GroupVersion().String())
			results, err := s.Apply(t.Context(), parent, wantConfigMap("a", "one", "red"), applyset.Member{Object: definition, Wait: true})
			want := "ConfigMap one Created, CustomResourceDefinition paints.example.com Pending"
			if got := actions(results); err != nil || got != want {
				t.Errorf("results %q, error %v; want %q", got, err, want)
			}
		})
	}
}

// member returns the metadata of a member of the parent's set.
func member(parent metav1.Object, apiVersion, kind, namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(name), Labels: map[string]string{partOf: parent.GetLabels()[idLabel]}},
	}
}

// A former member is found and pruned in a version that the API server serves, whatever the
// wanted version is and whatever the Mapper prefers.
func TestSetServedVersion(t *testing.T) {
	definition := applyset.Member{Object: object(strings.Replace(paintCRD, `"v2","served":false`, `"v2","served":true`, 1), "example.com", "example.com")}
	wanted := wantKind("example.com/v2", "Paint", "a", "one")
	waiting := wanted
	waiting.Wait = true
	for name, tt := range map[string]struct {
		served  string
		known   []string // by the Mapper
		members []applyset.Member
		want    string
	}{
		"defined by the set": {"v1", []string{"v1"}, []applyset.Member{definition, wanted}, "CustomResourceDefinition paints.example.com Created, Paint one Created, Paint two Pruned"},
		"not served yet":     {"v1", []string{"v1"}, []applyset.Member{waiting}, "Paint one Pending, Paint two Pruned"},
		"a Mapper with both": {"v2", []string{"v1", "v2"}, nil, "Paint one Pruned, Paint two Pruned"},
		"a Mapper with old":  {"v2", []string{"v1"}, nil, ""},
		"an earlier version": {"v1", []string{"v1", "v2"}, nil, "Paint one Pruned, Paint two Pruned"},
		"no version":         {"", []string{"v1", "v2"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, parent, _ := cached(0)
			parent.Annotations[groupKinds] = "Paint.example.com"
			var known []schema.GroupVersionKind
			for _, version := range tt.known {
				known = append(known, schema.GroupVersionKind{Group: "example.com", Version: version, Kind: "Paint"})
			}
			unserved := apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Group: "example.com", Resource: "paints"}, "", "404 page not found", 0, true)
			client := metadataClient(&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta})
			for _, name := range []string{"one", "two"} {
				if err := client.Tracker().Add(member(parent, "example.com/"+cmp.Or(tt.served, "v1"), "Paint", "a", name)); err != nil {
					t.Fatal(err)
				}
			}
			client.PrependReactor("*", "paints", func(a clienttesting.Action) (bool, runtime.Object, error) {
				return a.GetResource().Version != tt.served, nil, unserved
			})
			s.Client = fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
				if name == "one" {
					return nil, unserved
				}
				return new(unstructured.Unstructured), nil
			}}
			s.Mapper, s.Metadata, s.MaxPrunePercent = setMapper(known...), client, 100
			results, err := s.Plan(t.Context(), parent, tt.members...)
			if got := actions(results); err != nil || got != tt.want {
				t.Errorf("results %q, error %v; want %q", got, err, tt.want)
			}
		})
	}
}

// A definition among the wanted objects changes the served version during the call. A former member
// whose deletion waits for its finalizer is found in the new one, so that the stages after it wait.
func TestSetServedVersionChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, parent, _ := cached(0)
		parent.Annotations[groupKinds] = "ConfigMap,Paint.example.com"
		served := "v1"
		unserved := apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Group: "example.com", Resource: "paints"}, "", "404 page not found", 0, true)
		client := metadataClient(&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta}, member(parent, "v1", "ConfigMap", "a", "two"))
		for _, version := range []string{"v1", "v2"} {
			old := member(parent, "example.com/"+version, "Paint", "a", "old")
			old.DeletionTimestamp, old.Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/slow"}
			if err := client.Tracker().Add(old); err != nil {
				t.Fatal(err)
			}
		}
		client.PrependReactor("*", "paints", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetResource().Version != served, nil, unserved
		})
		definition := object(strings.Replace(strings.Replace(paintCRD, `"v2","served":false`, `"v2","served":true`, 1), `"v1","served":true`, `"v1","served":false`, 1), "example.com", "example.com")
		defined := definition.DeepCopy()
		defined.SetUID("definition")
		defined.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
		s.Client = fakeClient{
			patch: func(name string) (*unstructured.Unstructured, error) {
				if name == definition.GetName() {
					served = "v2"
					return defined, nil
				}
				return object(`{"metadata":{"name":"one","uid":"one"}}`), nil
			},
			get: func(context.Context, string) (*unstructured.Unstructured, error) { return defined, nil },
		}
		s.Metadata, s.MaxPrunePercent = client, 100
		s.Mapper = setMapper(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"}, schema.GroupVersionKind{Group: "example.com", Version: "v2", Kind: "Paint"})
		results, err := s.Apply(t.Context(), parent, applyset.Member{Object: definition}, wantKind("example.com/v2", "Paint", "a", "one"))
		want := "ConfigMap two Pending, CustomResourceDefinition paints.example.com Created, Paint old Pending, Paint one Created"
		if got := actions(results); err != nil || got != want {
			t.Errorf("results %q, error %v; want %q", got, err, want)
		}
	})
}

// If the API server does not serve the kind of a former member for a while, the Set lists again
// after a minute.
func TestSetUnservedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, parent, _ := cached(0)
		parent.Annotations[groupKinds] = "Paint.example.com"
		s.Metadata = metadataClient(&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta}, member(parent, "example.com/v1", "Paint", "a", "one"))
		s.MaxPrunePercent = 100
		for i, want := range []string{"Paint one Kept", "Paint one Pending", "Paint one Pending", "Paint one Pruned"} {
			s.Keep, s.Mapper = nil, setMapper(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"})
			switch i {
			case 0:
				s.Keep = func(schema.GroupVersionKind, metav1.Object) bool { return true }
			case 1:
				s.Mapper = setMapper()
			case 3:
				time.Sleep(time.Minute)
			}
			results, err := s.Apply(t.Context(), parent)
			if got := actions(results); err != nil || got != want {
				t.Errorf("call %d: results %q, error %v; want %q", i, got, err, want)
			}
		}
	})
}
