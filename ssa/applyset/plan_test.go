package applyset_test

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// Plan has the results of Apply for a kind that the API server has lost and the Mapper knows: Pending
// with Wait, and otherwise an error, also in a Namespace that is wanted too.
func TestSetPlanUnserved(t *testing.T) {
	unserved := apierrors.NewGenericServerResponse(404, "patch", schema.GroupResource{Group: "example.com", Resource: "paints"}, "one", "404 page not found", 0, true)
	space := applyset.Member{Object: object(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"b"}}`)}
	paint := func(namespace string, wait bool) applyset.Member {
		m := wantKind("example.com/v1", "Paint", namespace, "one")
		m.Wait = wait
		return m
	}
	for name, tt := range map[string]struct {
		wanted []applyset.Member
		want   string
		failed bool
	}{
		"Wait":                  {[]applyset.Member{paint("a", true)}, "Paint one Pending", false},
		"no Wait":               {[]applyset.Member{paint("a", false)}, "Paint one error", true},
		"a Namespace":           {[]applyset.Member{space, paint("b", false)}, "Namespace b Created, Paint one error", true},
		"a Namespace with Wait": {[]applyset.Member{space, paint("b", true)}, "Namespace b Created, Paint one Pending", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, plan := range []bool{true, false} {
				s, _, parent, _ := cached(0)
				parent.Annotations[groupKinds], parent.Annotations[namespaces] = "Namespace,Paint.example.com", "b"
				client := metadataClient(&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta})
				client.PrependReactor("*", "paints", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, unserved })
				client.PrependReactor("patch", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { // the inventory
					return true, &metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta}, nil
				})
				s.Metadata, s.Mapper = client, setMapper(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"})
				s.Client = fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
					if name == "b" {
						return object(`{"metadata":{"name":"b","uid":"b"}}`), nil
					}
					return nil, unserved
				}}
				call := s.Apply
				if plan {
					call = s.Plan
				}
				results, err := call(t.Context(), parent, tt.wanted...)
				if got := actions(results); got != tt.want || (err != nil) != tt.failed {
					t.Errorf("plan %t: results %q, error %v; want %q", plan, got, err, tt.want)
				}
			}
		})
	}
}

// If a former member is being deleted, or its examination fails, those of lower stages are Pending in a
// plan, as they are after Apply.
func TestSetPlanStages(t *testing.T) {
	for name, tt := range map[string]struct {
		deleting, fails bool
		want            string
	}{
		"gone":     {want: "ConfigMap two Pruned, Deployment one Pruned"},
		"deleting": {deleting: true, want: "ConfigMap two Pending, Deployment one Pending"},
		"fails":    {fails: true, want: "ConfigMap two Pending, Deployment one error"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, parent, _ := cached(0)
			parent.Annotations[groupKinds] = "ConfigMap,Deployment.apps"
			one := member(parent, "apps/v1", "Deployment", "a", "one")
			if tt.deleting {
				now := metav1.NewTime(time.Now())
				one.DeletionTimestamp, one.Finalizers = &now, []string{"example.com/held"}
			}
			s.Metadata = metadataClient(&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta}, one, member(parent, "v1", "ConfigMap", "a", "two"))
			s.MaxPrunePercent = 100
			if tt.fails {
				s.Stage = func(kind schema.GroupVersionKind, _ metav1.Object) int {
					if kind.Kind == "Deployment" {
						return 100
					}
					return 0
				}
			}
			plan, err := s.Plan(t.Context(), parent)
			if got := actions(plan); got != tt.want || (err != nil) != tt.fails {
				t.Errorf("Plan: results %q, error %v; want %q", got, err, tt.want)
			}
			results, err := s.Apply(t.Context(), parent)
			if got := actions(results); got != tt.want || (err != nil) != tt.fails {
				t.Errorf("Apply: results %q, error %v; want %q", got, err, tt.want)
			}
		})
	}
}
