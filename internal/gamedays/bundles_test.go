package gamedays

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// bundleRows are about the scope, the kinds at run time, and applied sets.
func bundleRows() []situation {
	return []situation{
		{
			name: "scope", title: "An administrator changes the namespaces of the operator", sample: true,
			do: func(d *day) {
				d.createBundle("blue", "more", "a")
				d.await(limit, func() error { return d.right(nil) })
				d.settings("red")
				d.await(10*time.Second, func() error { return d.allSay("The selected namespaces are shown", 1) })
				d.editBundle("blue", "more", "b") // not seen
				d.settings("red blue")
			},
			onCall: "a line about the namespaces", does: "Each replica watches the new namespaces, and makes up for what it has not seen.",
		},
		{
			name: "no-settings", title: "An administrator deletes the settings",
			do: func(d *day) {
				if err := d.kube().CoreV1().ConfigMaps(system).Delete(d.Context(), "settings", metav1.DeleteOptions{}); err != nil {
					d.Fatal(err)
				}
				d.createBundle("blue", "more", "a")
				d.await(limit, func() error { return d.right(nil) })
				d.says(10*time.Second, "settings")
			},
			onCall: "a line with the reason", does: "The last selection stays.", left: "restore the settings",
		},
		{
			name: "kind", title: "A bundle has a kind whose definition comes later, goes, and comes again",
			quiet: 60,
			do: func(d *day) {
				s := bundle("red", "gadgets", "a")
				s.StringData["gadget"] = "{apiVersion: example.com/v1, kind: Gadget, metadata: {name: one}}"
				if _, err := d.kube().CoreV1().Secrets("red").Create(d.Context(), s, metav1.CreateOptions{}); err != nil {
					d.Fatal(err)
				}
				d.await(10*time.Second, func() error {
					events, err := d.kube().CoreV1().Events("red").List(d.Context(), metav1.ListOptions{})
					if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "Pending" && strings.Contains(e.Message, "Gadget one") }) {
						err = errors.New("no Event names the gadget")
					}
					return err
				})
				for range 2 {
					d.installGadgets()
					took := d.await(limit, d.gadget)
					d.Logf("the gadget came %v after its definition", took)
					if err := d.definitions().Delete(d.Context(), "gadgets.example.com", metav1.DeleteOptions{}); err != nil {
						d.Fatal(err)
					}
					d.await(limit, func() error {
						if err := d.gadget(); err == nil {
							return errors.New("the gadget still exists")
						}
						return nil
					})
				}
				d.installGadgets()
				d.ends()
				d.await(limit, d.gadget)
				d.neverStale()
			},
			onCall: "an Event of the bundle that names the kind", does: "It applies the gadget when its kind is served.",
		},
		{
			name: "reads", title: "A kind that websites may read comes, changes, goes and comes again, beside an object that is read by its name",
			setup: setup{args: []string{"-shows", "-log", "zerolog"}}, quiet: 60,
			do: func(d *day) {
				d.shows("", "")
				for range 2 {
					d.install("Banner")
					d.createBanner("red", "sale")
					d.createBanner("blue", "other")
					d.shows("sale", "")
					d.createBanner("red", "winter")
					d.shows("sale.winter", "")
					old, _ := d.leader()
					d.addPod(d.newPod(old.name + "-new"))
					d.deletePod(old)
					d.deleteBanner("red", "sale")
					d.shows("winter", "")
					if err := d.definitions().Delete(d.Context(), "banners.example.com", metav1.DeleteOptions{}); err != nil {
						d.Fatal(err)
					}
					d.shows("", "")
				}
				accounts := d.kube().CoreV1().ServiceAccounts("red")
				if _, err := accounts.Create(d.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sites"}}, metav1.CreateOptions{}); err != nil {
					d.Fatal(err)
				}
				d.shows("", "sites")
				d.ends()
				if err := accounts.Delete(d.Context(), "sites", metav1.DeleteOptions{}); err != nil {
					d.Fatal(err)
				}
				d.shows("", "")
			},
			onCall: "nothing", does: "The websites that have read them run, also on the next leader. All lines are JSON.",
		},
		{
			name: "prune", title: "A user takes members out of a bundle, deletes one, edits one", sample: true,
			do: func(d *day) {
				d.editBundle("red", "extras", "b", "c")
				d.await(10*time.Second, func() error { return d.right(nil) })
				maps := d.kube().CoreV1().ConfigMaps("red")
				err := maps.Delete(d.Context(), "extras-b", metav1.DeleteOptions{})
				_, patchErr := maps.Patch(d.Context(), "extras-c", types.MergePatchType, []byte(`{"data":{"password":"mine"}}`), metav1.PatchOptions{})
				if err := errors.Join(err, patchErr); err != nil {
					d.Fatal(err)
				}
				d.ends()
				d.await(10*time.Second, func() error {
					got, err := maps.Get(d.Context(), "extras-c", metav1.GetOptions{})
					if err == nil && got.Data["password"] != secretText {
						err = errors.New("the edit has stayed")
					}
					return err
				})
			},
			onCall: "nothing", does: "The member that is gone from the bundle is pruned, the others come back.",
		},
		{
			name: "typo-secret", title: "A bundle has text that is no manifest, beside a password",
			do: func(d *day) {
				s := bundle("red", "typo", "a")
				s.StringData["b"] = "kind: [" + secretText
				if _, err := d.kube().CoreV1().Secrets("red").Create(d.Context(), s, metav1.CreateOptions{}); err != nil {
					d.Fatal(err)
				}
				time.Sleep(20 * time.Second) // for retries, which must not be
				if n := len(d.lines()); n > 3 {
					d.Errorf("%d lines, want at most 3", n)
				}
				if err := d.kube().CoreV1().Secrets("red").Delete(d.Context(), "typo", metav1.DeleteOptions{}); err != nil {
					d.Fatal(err)
				}
				d.ends()
				d.await(limit, func() error { return d.right(nil) })
				d.neverStale()
			},
			says:   [][]string{{`"Name":"typo"`, "key b is no manifest"}},
			onCall: "one line that names the bundle and the key", does: "It waits for the author, and applies no part of the bundle.", left: "the author mends the bundle",
		},
		{
			name: "left-scope", title: "A namespace leaves the scope, and its bundle is deleted there",
			do: func(d *day) {
				d.createBundle("blue", "more", "a")
				d.await(limit, func() error { return d.right(nil) })
				d.settings("red")
				d.await(10*time.Second, func() error { return d.allSay("The selected namespaces are shown", 1) })
				if err := d.kube().CoreV1().Secrets("blue").Delete(d.Context(), "more", metav1.DeleteOptions{}); err != nil {
					d.Fatal(err)
				}
				time.Sleep(10 * time.Second) // nothing may happen
				if _, err := d.kube().CoreV1().Secrets("blue").Get(d.Context(), "more", metav1.GetOptions{}); err != nil {
					d.Errorf("the bundle without an operator: %v, want it to wait for its finalizer", err)
				}
				d.settings("red blue")
			},
			onCall: "a deletion that waits", does: "The finalizer keeps the bundle until its namespace is in the scope again.", left: "add the namespace, or remove the finalizer by hand",
		},
	}
}

// editBundle makes the members of a bundle these.
func (d *day) editBundle(namespace, called string, members ...string) {
	d.Helper()
	secrets := d.kube().CoreV1().Secrets(namespace)
	old, err := secrets.Get(d.Context(), called, metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	old.Data, old.StringData = nil, bundle(namespace, called, members...).StringData
	if _, err := secrets.Update(d.Context(), old, metav1.UpdateOptions{}); err != nil {
		d.Fatal(err)
	}
}

// neverStale checks that no key has waited for its caches.
func (d *day) neverStale() {
	d.Helper()
	for _, p := range d.pods {
		for _, l := range p.log.all() {
			if strings.Contains(l.message(), "The caches do not show the writes") {
				d.Errorf("%s: %s", p.name, l.text)
			}
		}
	}
}

// allSay returns nil if each replica has logged a message at least n times since it began.
func (d *day) allSay(message string, n int) error {
	for _, p := range d.pods {
		seen := 0
		for _, l := range p.log.all() {
			if !l.at.Before(d.begin) && strings.Contains(l.message(), message) {
				seen++
			}
		}
		if seen < n {
			return fmt.Errorf("%s has said %q %d times", p.name, message, seen)
		}
	}
	return nil
}

// install installs a kind.
func (d *day) install(kind string) {
	d.Helper()
	singular := strings.ToLower(kind)
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": singular + "s.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": singular + "s", "singular": singular, "kind": kind, "listKind": kind + "List"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	}}
	d.await(limit, func() error { // the one before may still be being deleted
		_, err := d.definitions().Create(d.Context(), definition, metav1.CreateOptions{})
		return err
	})
}

// installGadgets installs a kind, and gives the operator rights for it.
func (d *day) installGadgets() {
	d.Helper()
	d.install("Gadget")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "gadgets"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"example.com"}, Resources: []string{"gadgets"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "gadgets"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: system}}}
	_, _ = d.kube().RbacV1().ClusterRoles().Create(d.Context(), role, metav1.CreateOptions{}) // exists the second time
	_, _ = d.kube().RbacV1().ClusterRoleBindings().Create(d.Context(), binding, metav1.CreateOptions{})
}

// gadget returns nil if the gadget exists.
func (d *day) gadget() error {
	gadgets := dynamic.NewForConfigOrDie(d.config()).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"})
	_, err := gadgets.Namespace("red").Get(d.Context(), "one", metav1.GetOptions{})
	return err
}

func (d *day) banners(namespace string) dynamic.ResourceInterface {
	banners := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "banners"}
	return dynamic.NewForConfigOrDie(d.config()).Resource(banners).Namespace(namespace)
}

// createBanner creates a banner once its kind is served.
func (d *day) createBanner(namespace, called string) {
	d.Helper()
	banner := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Banner", "metadata": map[string]any{"name": called}}}
	d.await(limit, func() error {
		_, err := d.banners(namespace).Create(d.Context(), banner, metav1.CreateOptions{})
		return err
	})
}

func (d *day) deleteBanner(namespace, called string) {
	d.Helper()
	if err := d.banners(namespace).Delete(d.Context(), called, metav1.DeleteOptions{}); err != nil {
		d.Fatal(err)
	}
}

// shows returns when the ConfigMap of the website shop in the namespace red has these labels. The operator asks
// each 10s whether an optional kind is served.
func (d *day) shows(banners, account string) {
	d.Helper()
	took := d.await(20*time.Second, func() error {
		m, err := d.kube().CoreV1().ConfigMaps("red").Get(d.Context(), "shop", metav1.GetOptions{})
		if err == nil && (m.Labels["banners"] != banners || m.Labels["account"] != account) {
			err = fmt.Errorf("the labels are %v, want the banners %q and the account %q", m.Labels, banners, account)
		}
		return err
	})
	d.Logf("the banners %q and the account %q after %v", banners, account, took)
}
