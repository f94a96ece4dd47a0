package objects

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestCheckOwned: a child of an earlier object of the owner's kind and name is waited for, and any other object that is
// not the owner's is rejected.
func TestCheckOwned(t *testing.T) {
	owner := Owner{
		Object: &metav1.ObjectMeta{Namespace: "shop", Name: "blog", UID: "now"},
		Kind:   schema.GroupVersionKind{Group: "web.example.com", Version: "v1", Kind: "Website"},
	}
	ref := func(version, kind, name string, uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: uid, Controller: ptr.To(true)}}
	}
	earlier := ref("web.example.com/v1beta1", "Website", "blog", "before")
	const (
		collected = "it belongs to an earlier Website of this name, and waits for the garbage collector"
		deleted   = "it belongs to an earlier Website of this name, and is being deleted"
		rejected  = "it exists and does not belong to this Website: delete it, or give one of them another name: reconcile: rejected"
	)
	for name, tc := range map[string]struct {
		refs      []metav1.OwnerReference
		labels    map[string]string
		namespace string // "" means that of the owner
		deleted   bool
		want      string
	}{
		"its own":              {refs: ref("web.example.com/v1", "Website", "blog", "now")},
		"its own, deleted":     {refs: ref("web.example.com/v1", "Website", "blog", "now"), deleted: true},
		"marked":               {labels: map[string]string{OwnerUID: "now"}},
		"marked by an earlier": {labels: map[string]string{OwnerUID: "before"}, want: rejected},
		"of an earlier":        {refs: earlier, want: collected},
		"of an earlier, gone":  {refs: earlier, deleted: true, want: deleted},
		"of another namespace": {refs: earlier, namespace: "other", want: rejected},
		"of another name":      {refs: ref("web.example.com/v1", "Website", "news", "before"), want: rejected},
		"of another kind":      {refs: ref("web.example.com/v1", "Shop", "blog", "before"), want: rejected},
		"of another group":     {refs: ref("example.com/v1", "Website", "blog", "before"), want: rejected},
		"of another, deleted":  {refs: ref("web.example.com/v1", "Website", "news", "before"), deleted: true, want: rejected},
		"of none":              {want: rejected},
		"of none, deleted":     {deleted: true, want: rejected},
		"of an owner, no controller": {refs: []metav1.OwnerReference{{
			APIVersion: "web.example.com/v1", Kind: "Website", Name: "blog", UID: "before",
		}}, want: rejected},
	} {
		child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "x", OwnerReferences: tc.refs, Labels: tc.labels}}
		if tc.namespace != "" {
			child.Namespace = tc.namespace
		}
		if tc.deleted {
			child.DeletionTimestamp = ptr.To(metav1.Now())
		}
		err, text := owner.CheckOwned(child), ""
		if err != nil {
			text = err.Error()
		}
		wait := time.Duration(0)
		if tc.want == collected || tc.want == deleted {
			wait = 10 * time.Second
		}
		if text != tc.want || kube.Waits(err) != wait || errors.Is(err, reconcile.ErrRejected) != (tc.want == rejected) {
			t.Errorf("%s: %v, which waits %v, want %q", name, err, kube.Waits(err), tc.want)
		}
	}
}

// TestOwnerKey: the marks of an object run the key of the owner that is cached with the UID of the label, and no other.
func TestOwnerKey(t *testing.T) {
	const name = "websites.web.example.com/shop/blog"
	websites := schema.GroupResource{Group: "web.example.com", Resource: "websites"}
	cached := map[types.NamespacedName]types.UID{{Namespace: "shop", Name: "blog"}: "now", {Name: "blog"}: "wide"}
	for what, tc := range map[string]struct {
		uid, name string
		want      []types.NamespacedName
	}{
		"its own":             {uid: "now", name: name, want: []types.NamespacedName{{Namespace: "shop", Name: "blog"}}},
		"of the cluster":      {uid: "wide", name: "websites.web.example.com/blog", want: []types.NamespacedName{{Name: "blog"}}},
		"of an earlier owner": {uid: "before", name: name},
		"of another owner":    {uid: "now", name: "websites.web.example.com/shop/news"},
		"of another kind":     {uid: "now", name: "websites.example.com/shop/blog"},
		"no label":            {name: name},
		"no annotation":       {uid: "now"},
	} {
		child := &metav1.ObjectMeta{Labels: map[string]string{}, Annotations: map[string]string{}}
		if tc.uid != "" {
			child.Labels[OwnerUID] = tc.uid
		}
		if tc.name != "" {
			child.Annotations[OwnerName] = tc.name
		}
		got := OwnerKey(child, websites, func(key types.NamespacedName) (metav1.Object, bool) {
			uid, ok := cached[key]
			return &metav1.ObjectMeta{UID: uid}, ok
		})
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", what, got, tc.want)
		}
	}
}
