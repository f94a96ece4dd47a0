package applyset_test

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
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
