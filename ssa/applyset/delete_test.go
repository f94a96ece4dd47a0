package applyset_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// TestSetDeleteWaits: a deletion that is not finished is no failure. A kind that is not served is one: it can
// need a human.
func TestSetDeleteWaits(t *testing.T) {
	set, parent := exampleSet()
	hold(set, "easel")
	if results, err := set.Delete(t.Context(), parent); kube.Waits(err) != 5*time.Second {
		t.Errorf("a held member: %s, error %v waits %v, want 5s", actions(results), err, kube.Waits(err))
	}
	parent.Annotations[groupKinds] = "ConfigMap,Paint.example.com"
	set.Metadata = metadataClient(parent, member(parent, "v1", "ConfigMap", "studio", "easel"))
	hold(set, "easel")
	if results, err := set.Delete(t.Context(), parent); err == nil || kube.Waits(err) != 0 || !strings.Contains(err.Error(), "does not serve the kind Paint") {
		t.Errorf("a kind that is not served: %s, error %v waits %v", actions(results), err, kube.Waits(err))
	}
}

// TestSetDeleteOrphan: a user deletes the parent with --cascade=orphan, so the members stay. Without that deletion, the
// finalizer alone keeps nothing.
func TestSetDeleteOrphan(t *testing.T) {
	for name, deleted := range map[string]*metav1.Time{"deleted": {Time: time.Unix(0, 0)}, "not deleted": nil} {
		t.Run(name, func(t *testing.T) {
			set, parent := exampleSet()
			parent.Finalizers = append(parent.Finalizers, metav1.FinalizerOrphanDependents)
			parent.DeletionTimestamp = deleted
			results, err := set.Delete(t.Context(), parent)
			if err != nil {
				t.Fatal(err)
			}
			deletions := 0
			for _, a := range set.Metadata.(*metadatafake.FakeMetadataClient).Actions() {
				if a.GetVerb() == "delete" {
					deletions++
				}
			}
			if want := deleted == nil; (deletions == 1) != want || (len(results) == 1) != want {
				t.Errorf("%d deletions, results %q", deletions, actions(results))
			}
		})
	}
}
