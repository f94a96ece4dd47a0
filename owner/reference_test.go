package owner_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/owner"
)

// TestReference: the references for apply configurations are those of SetController, and a plain one.
func TestReference(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", UID: "u"}}
	child := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns"}}
	if err := owner.SetController(cm, kind, child); err != nil {
		t.Fatal(err)
	}
	plain := child.OwnerReferences[0]
	plain.Controller, plain.BlockOwnerDeletion = nil, nil
	for name, tt := range map[string]struct {
		make func(metav1.Object, schema.GroupVersionKind) (*applymetav1.OwnerReferenceApplyConfiguration, error)
		want metav1.OwnerReference
	}{
		"Controller": {owner.Controller, child.OwnerReferences[0]},
		"Reference":  {owner.Reference, plain},
	} {
		ref, err := tt.make(cm, kind)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(ref)
		if err != nil {
			t.Fatal(err)
		}
		var got metav1.OwnerReference
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for _, wrong := range []metav1.Object{nil, &corev1.ConfigMap{}, (*corev1.ConfigMap)(nil)} {
			var terminal controllerkit.TerminalError
			if ref, err := tt.make(wrong, kind); ref != nil || !errors.As(err, &terminal) || !terminal.Terminal() {
				t.Errorf("%s(%v) = %v, %v, want a terminal error", name, wrong, ref, err)
			}
		}
		if _, err := tt.make(cm, schema.GroupVersionKind{Kind: "ConfigMap"}); err == nil {
			t.Errorf("%s of a kind without version is no error", name)
		}
	}
}
