package owner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/fakeserver"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/owner"
)

// errTerminal stands for an error with a method Terminal() bool that returns true.
var errTerminal = errors.New("terminal")

func isTerminal(err error) bool {
	var t controllerkit.TerminalError
	return errors.As(err, &t) && t.Terminal()
}

func isStale(err error) bool {
	var s controllerkit.StaleError
	return errors.As(err, &s) && s.Stale()
}

// hasPrefix reports whether the package's prefix is in the text of err exactly once.
func hasPrefix(err error) bool {
	return strings.HasPrefix(err.Error(), "owner: ") && strings.Count(err.Error(), "owner: ") == 1
}

// TestSetController tests which references SetController makes, and which it refuses
// without a change.
func TestSetController(t *testing.T) {
	t.Parallel()
	mine := ref("settings", "uid-1", ptr.To(true))
	plain := ref("settings", "uid-1", nil)
	friend := ref("friend", "uid-3", nil)
	foreign := ref("settings", "uid-2", ptr.To(true))
	renamed := mine
	renamed.APIVersion = "v0"
	tests := []struct {
		name     string
		owner    string // its namespace; "" for cluster-scoped
		child    string
		change   func(*corev1.ConfigMap) // of the owner
		kind     schema.GroupVersionKind // zero for configMapKind
		refs     []metav1.OwnerReference
		want     []metav1.OwnerReference
		wantErr  error
		wantText string
	}{
		{name: "none yet", owner: "default", child: "default", want: []metav1.OwnerReference{mine}},
		{name: "there already", owner: "default", child: "default", refs: []metav1.OwnerReference{friend, mine}, want: []metav1.OwnerReference{friend, mine}},
		{name: "beside another owner", owner: "default", child: "default", refs: []metav1.OwnerReference{friend}, want: []metav1.OwnerReference{friend, mine}},
		{name: "owner becomes controller", owner: "default", child: "default", refs: []metav1.OwnerReference{plain, friend}, want: []metav1.OwnerReference{mine, friend}},
		{name: "old version of the kind", owner: "default", child: "default", refs: []metav1.OwnerReference{renamed}, want: []metav1.OwnerReference{mine}},
		{name: "cluster-scoped owner and child", want: []metav1.OwnerReference{mine}},
		{name: "cluster-scoped owner", child: "default", want: []metav1.OwnerReference{mine}},
		{name: "another namespace", owner: "default", child: "other", wantErr: errTerminal, wantText: "the owner is in namespace \"default\" and the child in \"other\""},
		{name: "cluster-scoped child", owner: "default", wantErr: errTerminal, wantText: "the child has no namespace"},
		{name: "another controller", owner: "default", child: "default", refs: []metav1.OwnerReference{foreign}, want: []metav1.OwnerReference{foreign}, wantErr: owner.ErrOtherController, wantText: `ConfigMap "settings" with uid "uid-2"`},
		{name: "owner and another controller", owner: "default", child: "default", refs: []metav1.OwnerReference{plain, foreign}, want: []metav1.OwnerReference{plain, foreign}, wantErr: owner.ErrOtherController},
		{name: "owner twice", owner: "default", child: "default", refs: []metav1.OwnerReference{plain, friend, mine}, want: []metav1.OwnerReference{mine, friend}},
		{name: "no uid", owner: "default", child: "default", change: func(cm *corev1.ConfigMap) { cm.UID = "" }, wantErr: errTerminal, wantText: "metadata.uid"},
		{name: "no name", owner: "default", child: "default", change: func(cm *corev1.ConfigMap) { cm.Name = "" }, wantErr: errTerminal, wantText: "no metadata.name"},
		{name: "kind of a typed object", owner: "default", child: "default", kind: schema.GroupVersionKind{Group: "apps"}, wantErr: errTerminal, wantText: "set its version and kind"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			parent := fakeserver.Settings(func(cm *corev1.ConfigMap) { cm.Namespace = tt.owner })
			if tt.change != nil {
				tt.change(parent)
			}
			kind := tt.kind
			if kind == (schema.GroupVersionKind{}) {
				kind = configMapKind
			}
			child := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tt.child, Name: "child"}}
			given := make([]metav1.OwnerReference, len(tt.refs), len(tt.refs)+1) // with room for an append to go wrong
			copy(given, tt.refs)
			if tt.refs != nil {
				child.OwnerReferences = given
			}
			for range 2 { // the second time changes nothing
				err := owner.SetController(parent, kind, child)
				if tt.wantErr == errTerminal != isTerminal(err) || tt.wantErr != errTerminal && !errors.Is(err, tt.wantErr) || tt.wantErr == nil && err != nil {
					t.Errorf("error = %v, want %v", err, tt.wantErr)
				}
				if err != nil && (!strings.Contains(err.Error(), tt.wantText) || !hasPrefix(err)) {
					t.Errorf("error = %q, want one with %q and the prefix of the package once", err, tt.wantText)
				}
				if diff := cmp.Diff(tt.want, child.OwnerReferences); diff != "" {
					t.Errorf("owner references (-want +got):\n%s", diff)
				}
			}
			if diff := cmp.Diff(tt.refs, given[:len(tt.refs):len(tt.refs)]); tt.refs != nil && diff != "" {
				t.Errorf("the list given was written to (-before +after):\n%s", diff)
			}
			if extra := given[:cap(given)][len(tt.refs)]; extra.UID != "" {
				t.Errorf("the array of the list given was written to: %v", extra)
			}
		})
	}
}

func labelled(cm *corev1.ConfigMap) { cm.Labels = map[string]string{"app": "web", "tier": "1"} }
func deleting(cm *corev1.ConfigMap) {
	cm.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	cm.Finalizers = []string{"example.com/wait"}
}
func owned(refs ...metav1.OwnerReference) func(*corev1.ConfigMap) {
	return func(cm *corev1.ConfigMap) { cm.OwnerReferences = refs }
}

// TestClaim proves OW1 and OW2, the table in the comment of Claim, and everything that holds a write up.
func TestClaim(t *testing.T) {
	t.Parallel()
	mine := ref("settings", "uid-1", ptr.To(true))
	plain := ref("settings", "uid-1", nil)
	friend := ref("friend", "uid-3", nil)
	foreign := ref("other", "uid-2", ptr.To(true))
	type edit = func(*corev1.ConfigMap)
	none := func(*corev1.ConfigMap) {}
	tests := []struct {
		name     string
		owner    []edit // of the cached owner
		live     edit   // of the live owner; nil for no owner
		child    []edit
		now      edit // of the live child only; nil means it is as cached
		gone     bool // the child, live
		claimed  bool
		want     []metav1.OwnerReference // of the live child
		requests string
		wantErr  func(error) bool
	}{
		{name: "owned, matches", live: none, child: []edit{labelled, owned(mine)}, claimed: true, want: []metav1.OwnerReference{mine}},
		{name: "owned, no match", live: none, child: []edit{owned(friend, mine)}, want: []metav1.OwnerReference{friend}, requests: "get settings, patch child"},
		{name: "owned alone, no match", live: none, child: []edit{owned(mine)}, want: nil, requests: "get settings, patch child"},
		{name: "orphan, matches", live: none, child: []edit{labelled}, claimed: true, want: []metav1.OwnerReference{mine}, requests: "get settings, patch child"},
		{name: "orphan with owner, matches", live: none, child: []edit{labelled, owned(friend)}, claimed: true, want: []metav1.OwnerReference{friend, mine}, requests: "get settings, patch child"},
		{name: "orphan with reference, matches", live: none, child: []edit{labelled, owned(plain)}, claimed: true, want: []metav1.OwnerReference{mine}, requests: "get settings, patch child"},
		{name: "orphan, no match", live: none, child: nil, want: nil},
		{name: "of another, matches", live: none, child: []edit{labelled, owned(foreign)}, want: []metav1.OwnerReference{foreign}},
		{name: "of another, no match", live: none, child: []edit{owned(foreign)}, want: []metav1.OwnerReference{foreign}},
		{name: "owned, matches, deleting", live: none, child: []edit{labelled, owned(mine), deleting}, claimed: true, want: []metav1.OwnerReference{mine}},
		{name: "owned, no match, deleting", live: none, child: []edit{owned(mine), deleting}, want: []metav1.OwnerReference{mine}},
		{name: "orphan, matches, deleting", live: none, child: []edit{labelled, deleting}},
		{name: "orphan, other namespace", live: none, child: []edit{labelled, func(cm *corev1.ConfigMap) { cm.Namespace = "other" }}},
		{name: "forged in another namespace, matches", live: none, child: []edit{labelled, owned(mine), func(cm *corev1.ConfigMap) { cm.Namespace = "other" }}, want: []metav1.OwnerReference{mine}},
		{name: "forged in another namespace, no match", live: none, child: []edit{owned(mine), func(cm *corev1.ConfigMap) { cm.Namespace = "other" }}, want: []metav1.OwnerReference{mine}},
		{name: "owner deleting, adopt", owner: []edit{deleting}, live: deleting, child: []edit{labelled}},
		{name: "owner deleting, orphan", owner: []edit{deleting}, live: deleting, child: []edit{owned(mine)}, want: []metav1.OwnerReference{mine}},
		{name: "owner deleting live, adopt", live: deleting, child: []edit{labelled}, requests: "get settings", wantErr: func(err error) bool { return errors.Is(err, kube.ErrChanged) && isStale(err) }},
		{name: "owner deleting live, orphan", live: deleting, child: []edit{owned(mine)}, want: []metav1.OwnerReference{mine}, requests: "get settings", wantErr: func(err error) bool { return errors.Is(err, kube.ErrChanged) && isStale(err) }},
		{name: "owner gone", child: []edit{labelled}, requests: "get settings", wantErr: func(err error) bool { return errors.Is(err, kube.ErrGone) && isStale(err) }},
		{name: "owner replaced", live: func(cm *corev1.ConfigMap) { cm.UID = "uid-9" }, child: []edit{labelled}, requests: "get settings", wantErr: func(err error) bool { return errors.Is(err, kube.ErrReplaced) && isStale(err) }},
		{name: "owner changed otherwise", live: func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"a": "b"} }, child: []edit{labelled}, claimed: true, want: []metav1.OwnerReference{mine}, requests: "get settings, patch child"},
		{name: "child changed otherwise", live: none, child: []edit{labelled}, now: func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"a": "b"} }, claimed: true, want: []metav1.OwnerReference{mine}, requests: "get settings, patch child"},
		{name: "child relabelled", live: none, child: []edit{labelled}, now: func(cm *corev1.ConfigMap) { cm.Labels = nil }, requests: "get settings, patch child", wantErr: apierrors.IsConflict},
		{name: "child labelled", live: none, child: []edit{owned(mine)}, now: labelled, want: []metav1.OwnerReference{mine}, requests: "get settings, patch child", wantErr: apierrors.IsConflict},
		{name: "child adopted by another", live: none, child: []edit{labelled}, now: owned(foreign), want: []metav1.OwnerReference{foreign}, requests: "get settings, patch child", wantErr: apierrors.IsConflict},
		{name: "child deleted meanwhile, adopt", live: none, child: []edit{labelled}, now: deleting, requests: "get settings, patch child", wantErr: apierrors.IsConflict},
		{name: "child deleted meanwhile, orphan", live: none, child: []edit{owned(mine)}, now: deleting, want: []metav1.OwnerReference{mine}, requests: "get settings, patch child", wantErr: apierrors.IsConflict},
		{name: "empty owner list, adopt", live: none, child: []edit{labelled, owned([]metav1.OwnerReference{}...)}, claimed: true, want: []metav1.OwnerReference{mine}, requests: "get settings, patch child"},
		{name: "empty labels, release", live: none, child: []edit{owned(mine), func(cm *corev1.ConfigMap) { cm.Labels = map[string]string{} }}, requests: "get settings, patch child"},
		{name: "child replaced", live: none, child: []edit{labelled}, now: func(cm *corev1.ConfigMap) { cm.UID = "uid-6" }, requests: "get settings, patch child", wantErr: apierrors.IsConflict},
		{name: "child gone", live: none, child: []edit{labelled}, gone: true, requests: "get settings, patch child"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			parent, cached := fakeserver.Settings(tt.owner...), child(tt.child...)
			m := fakeserver.New()
			if tt.live != nil {
				m.Put(fakeserver.Settings(tt.live))
			}
			if !tt.gone {
				live := cached.DeepCopy()
				if tt.now != nil {
					tt.now(live)
				}
				m.Put(live)
			}
			var requests []string
			m.Do = func(name string, call func() error) error {
				requests = append(requests, name)
				return call()
			}
			given := cached.DeepCopy()
			claimed, err := owner.Claim(t.Context(), m, parent, configMapKind, m, labels.SelectorFromSet(labels.Set{"app": "web"}), []*corev1.ConfigMap{cached})
			if tt.wantErr == nil && err != nil || tt.wantErr != nil && !(tt.wantErr(err) && hasPrefix(err)) {
				t.Errorf("error = %v", err)
			}
			if got := len(claimed) == 1; got != tt.claimed || len(claimed) > 1 {
				t.Errorf("claimed %v, want it: %v", claimed, tt.claimed)
			}
			if tt.claimed && metav1.GetControllerOf(claimed[0]).UID != parent.UID {
				t.Errorf("claimed %v, which is not the version that has the reference", claimed[0])
			}
			if got := strings.Join(requests, ", "); got != tt.requests {
				t.Errorf("requests %q, want %q", got, tt.requests)
			}
			if live := m.Objects["child"]; live != nil {
				if diff := cmp.Diff(tt.want, live.OwnerReferences); diff != "" && len(tt.want)+len(live.OwnerReferences) > 0 {
					t.Errorf("owner references in the server (-want +got):\n%s", diff)
				}
			}
			if diff := cmp.Diff(given, cached); diff != "" {
				t.Errorf("the cached child was changed:\n%s", diff)
			}
		})
	}
}

// Several children: one live read, and the error of one does not hold up the others.
func TestClaimSeveral(t *testing.T) {
	t.Parallel()
	named := func(name string) func(*corev1.ConfigMap) {
		return func(cm *corev1.ConfigMap) { cm.Name, cm.UID = name, types.UID("uid-"+name) }
	}
	m := fakeserver.New(fakeserver.Settings())
	children := []*corev1.ConfigMap{child(labelled, named("a")), child(labelled, named("b")), child(named("c")), child(labelled, named("d"))}
	for _, c := range children {
		m.Put(c)
	}
	m.Objects["b"].Labels = nil
	var requests []string
	m.Do = func(name string, call func() error) error {
		requests = append(requests, name)
		if name == "patch d" {
			return context.DeadlineExceeded
		}
		return call()
	}
	claimed, err := owner.Claim(t.Context(), m, fakeserver.Settings(), configMapKind, m, labels.SelectorFromSet(labels.Set{"app": "web"}), children)
	if !apierrors.IsConflict(err) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "adopt default/d") {
		t.Errorf("error = %v, want a conflict and a deadline", err)
	}
	if len(claimed) != 1 || claimed[0].Name != "a" {
		t.Errorf("claimed %v, want a", claimed)
	}
	if got, want := fmt.Sprint(requests), "[get settings patch a patch b patch d]"; got != want {
		t.Errorf("requests %s, want %s", got, want)
	}
}

// If the owner cannot be read, there is no write, and the children that it controls are returned wherever they stand.
func TestClaimUnread(t *testing.T) {
	t.Parallel()
	m, own := fakeserver.New(fakeserver.Settings()), fakeserver.Settings()
	controlled := child(labelled, func(cm *corev1.ConfigMap) { cm.Name = "b" })
	if err := owner.SetController(own, configMapKind, controlled); err != nil {
		t.Fatal(err)
	}
	var requests []string
	m.Do = func(name string, _ func() error) error {
		requests = append(requests, name)
		return context.DeadlineExceeded
	}
	children := []*corev1.ConfigMap{child(labelled), controlled, child(labelled)}
	claimed, err := owner.Claim(t.Context(), m, own, configMapKind, m, labels.SelectorFromSet(labels.Set{"app": "web"}), children)
	if !errors.Is(err, context.DeadlineExceeded) || len(claimed) != 1 || claimed[0] != controlled {
		t.Errorf("claimed %v, error %v; want b and a deadline", claimed, err)
	}
	if got := fmt.Sprint(requests); got != "[get settings]" {
		t.Errorf("requests %s, want one read", got)
	}
}

func TestSetControllerNil(t *testing.T) {
	t.Parallel()
	var none *corev1.ConfigMap
	for name, pair := range map[string][2]metav1.Object{"owner": {none, child()}, "child": {fakeserver.Settings(), none}, "interface": {fakeserver.Settings(), nil}} {
		if err := owner.SetController(pair[0], configMapKind, pair[1]); !isTerminal(err) || !hasPrefix(err) || !strings.Contains(err.Error(), "owner or child is nil") {
			t.Errorf("nil %s: error = %v, want a terminal one", name, err)
		}
	}
}

func TestClaimMisuse(t *testing.T) {
	t.Parallel()
	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	tests := []struct {
		name     string
		owner    *corev1.ConfigMap
		kind     schema.GroupVersionKind
		selector labels.Selector
		want     string
	}{
		{name: "nil selector", owner: fakeserver.Settings(), kind: configMapKind, want: "selector is empty"},
		{name: "empty selector", owner: fakeserver.Settings(), kind: configMapKind, selector: labels.Everything(), want: "selector is empty"},
		{name: "no uid", owner: fakeserver.Settings(func(cm *corev1.ConfigMap) { cm.UID = "" }), kind: configMapKind, selector: web, want: "metadata.uid"},
		{name: "no kind", owner: fakeserver.Settings(), selector: web, want: "set its version and kind"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := fakeserver.New(fakeserver.Settings(), child())
			claimed, err := owner.Claim(t.Context(), m, tt.owner, tt.kind, m, tt.selector, []*corev1.ConfigMap{child()})
			if !isTerminal(err) || !strings.Contains(err.Error(), tt.want) || !hasPrefix(err) || claimed != nil || m.Writes > 0 {
				t.Errorf("Claim() = %v, %v with %d writes; want a terminal error with %q", claimed, err, m.Writes, tt.want)
			}
		})
	}
}

// TestServerClaim proves OW1 and OW2 on the real server: that its answers to the patches are what
// they are taken for, from fresh and from old copies.
func TestServerClaim(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	client := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	create := func(t *testing.T, change ...func(*corev1.ConfigMap)) *corev1.ConfigMap {
		t.Helper()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
		for _, f := range change {
			f(cm)
		}
		cm, err := client.Create(t.Context(), cm, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, err := client.Patch(context.Background(), cm.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Errorf("clean up: %v", err)
			}
		})
		return cm
	}
	claim := func(t *testing.T, parent, child *corev1.ConfigMap) (*corev1.ConfigMap, error) {
		t.Helper()
		claimed, err := owner.Claim(t.Context(), client, parent, configMapKind, client, web, []*corev1.ConfigMap{child})
		if len(claimed) == 0 {
			return nil, err
		}
		return claimed[0], err
	}
	merge := func(t *testing.T, cm *corev1.ConfigMap, patch string) {
		t.Helper()
		if _, err := client.Patch(t.Context(), cm.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(t *testing.T, cm *corev1.ConfigMap) {
		t.Helper()
		if err := client.Delete(t.Context(), cm.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("there and back", func(t *testing.T) {
		t.Parallel()
		parent, friend := create(t), create(t)
		cm := create(t, labelled, func(cm *corev1.ConfigMap) {
			cm.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: friend.Name, UID: friend.UID}}
		})
		adopted, err := claim(t, parent, cm)
		if err != nil || len(adopted.OwnerReferences) != 2 || !metav1.IsControlledBy(adopted, parent) {
			t.Fatalf("Claim() = %v, %v", adopted, err)
		}
		again, err := claim(t, parent, adopted)
		if err != nil || again.ResourceVersion != adopted.ResourceVersion {
			t.Errorf("Claim() again = %v, %v", again, err)
		}
		merge(t, cm, `{"metadata":{"labels":null}}`)
		live, err := client.Get(t.Context(), cm.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if left, err := claim(t, parent, live); left != nil || err != nil {
			t.Errorf("Claim() of one that matches no more = %v, %v", left, err)
		}
		if live, err = client.Get(t.Context(), cm.Name, metav1.GetOptions{}); err != nil || len(live.OwnerReferences) != 1 || live.OwnerReferences[0].UID != friend.UID {
			t.Errorf("the orphan has %v, %v; want its other owner", live.OwnerReferences, err)
		}
	})
	t.Run("from none to none", func(t *testing.T) {
		t.Parallel()
		parent, cm := create(t), create(t, labelled)
		adopted, err := claim(t, parent, cm)
		if err != nil || !metav1.IsControlledBy(adopted, parent) {
			t.Fatalf("Claim() = %v, %v", adopted, err)
		}
		adopted.Labels = map[string]string{"app": "mail"}
		if adopted, err = client.Update(t.Context(), adopted, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := claim(t, parent, adopted); err != nil {
			t.Error(err)
		}
		if live, err := client.Get(t.Context(), cm.Name, metav1.GetOptions{}); err != nil || len(live.OwnerReferences) != 0 {
			t.Errorf("the orphan has %v, %v", live.OwnerReferences, err)
		}
	})
	old := []struct {
		name   string
		child  func(*corev1.ConfigMap)
		change func(t *testing.T, parent, child *corev1.ConfigMap)
		want   func(error) bool
	}{
		{name: "child relabelled", child: labelled, change: func(t *testing.T, _, child *corev1.ConfigMap) {
			merge(t, child, `{"metadata":{"labels":null}}`)
		}, want: apierrors.IsConflict},
		{name: "child adopted", child: labelled, change: func(t *testing.T, _, child *corev1.ConfigMap) {
			if _, err := claim(t, create(t), child); err != nil {
				t.Fatal(err)
			}
		}, want: apierrors.IsConflict},
		{name: "child deleting", child: func(cm *corev1.ConfigMap) { labelled(cm); cm.Finalizers = []string{"example.com/wait"} }, change: func(t *testing.T, _, child *corev1.ConfigMap) {
			remove(t, child)
		}, want: apierrors.IsConflict},
		{name: "child gone", child: labelled, change: func(t *testing.T, _, child *corev1.ConfigMap) {
			remove(t, child)
		}, want: func(err error) bool { return err == nil }},
		{name: "owner deleting", child: labelled, change: func(t *testing.T, parent, _ *corev1.ConfigMap) {
			merge(t, parent, `{"metadata":{"finalizers":["example.com/wait"]}}`)
			remove(t, parent)
		}, want: func(err error) bool { return errors.Is(err, kube.ErrChanged) }},
		{name: "owner gone", child: labelled, change: func(t *testing.T, parent, _ *corev1.ConfigMap) {
			remove(t, parent)
		}, want: func(err error) bool { return errors.Is(err, kube.ErrGone) }},
	}
	for _, tt := range old {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			parent, cm := create(t), create(t, tt.child)
			tt.change(t, parent, cm)
			if claimed, err := claim(t, parent, cm); claimed != nil || !tt.want(err) {
				t.Errorf("Claim() = %v, %v", claimed, err)
			}
			if live, err := client.Get(t.Context(), cm.Name, metav1.GetOptions{}); err == nil && metav1.IsControlledBy(live, parent) {
				t.Error("it was adopted")
			}
		})
	}
}
