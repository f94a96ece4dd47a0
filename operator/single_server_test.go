package operator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerSingle: objects are read without a right to list the others, and wake the keys that read them. Proves
// OP14.
func TestServerSingle(t *testing.T) {
	t.Parallel()
	for name, names := range map[string][]string{"names": {"settings"}, "any name": nil} {
		t.Run(name, func(t *testing.T) {
			namespace := testserver.Namespace(t)
			got := newSeen()
			others := make(chan error, 10)
			make := func(config *rest.Config) *operator.Operator {
				op, err := operator.New(config, operator.Options{Name: "single", Namespace: namespace})
				if err != nil {
					t.Fatal(err)
				}
				var secrets *operator.Reader[*corev1.Secret]
				c := operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
					ReadOnly: true,
					Reconcile: func(ctx context.Context, m *corev1.ConfigMap) (reconcile.Result, error) {
						if _, ok := m.Data["wrong"]; ok {
							_, get := secrets.Get(ctx, namespace, "another")
							_, list := secrets.List(ctx, namespace, labels.Everything())
							others <- errors.Join(get, list)
						}
						secret, err := secrets.Get(ctx, namespace, "settings")
						switch {
						case apierrors.IsNotFound(err):
							got.note(m.Name, "absent")
							return reconcile.Result{}, nil
						case err != nil:
							got.note(m.Name, reconcile.Class(err))
							return reconcile.Result{}, err
						}
						got.note(m.Name, string(secret.Data["by"]))
						return reconcile.Result{}, nil
					},
				})
				secrets = operator.Reads(c, secretsVersion, operator.Reading[*corev1.Secret]{Single: true, Names: names})
				return op
			}
			rules, _ := make(testserver.Config(t)).Rules()
			named := func(r rbacv1.PolicyRule) bool { return len(r.ResourceNames) > 0 }
			if i := slices.IndexFunc(rules, named); i < 0 != (names == nil) {
				t.Fatalf("Rules() = %+v", rules)
			} else if names != nil {
				want := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list", "watch"}, ResourceNames: names}
				if got, want := rules[i].String(), want.String(); got != want || slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return !named(r) && slices.Contains(r.Resources, "secrets") }) {
					t.Errorf("the rule of the names is %s, want %s and no other", got, want)
				}
			}
			logs := testlog.New()
			start(t, make(testserver.Limited(t, namespace, rules...)), logs)
			create(t, testserver.Config(t), namespace, "reader")
			got.wait(t, "reader", "absent")
			secrets := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().Secrets(namespace)
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, StringData: map[string]string{"by": "one"}}
			if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			got.wait(t, "reader", "one")
			secret.StringData["by"] = "two"
			if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			got.wait(t, "reader", "two")
			wrong := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}, Data: map[string]string{"wrong": ""}}
			if _, err := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace).Create(t.Context(), wrong, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			err := receive(t, others)
			for _, want := range []string{`operator: read secrets: the name "another" is not in Reading.Names: add it`, "operator: read secrets: Reading.Single is set, so only Get is possible"} {
				if strings.Contains(err.Error(), want) != (names != nil || strings.Contains(want, "Single")) || !errors.Is(err, reconcile.ErrRejected) {
					t.Errorf("wrong reads have the errors %v, want %s if there are names", err, want)
				}
			}
			if err := secrets.Delete(t.Context(), "settings", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			got.wait(t, "reader", "absent")

			// Without the right the read fails with the reason, and not by its time.
			namespace = testserver.Namespace(t)
			without := slices.DeleteFunc(rules, func(r rbacv1.PolicyRule) bool { return named(r) })
			for i := range without {
				without[i].Resources = slices.DeleteFunc(without[i].Resources, func(r string) bool { return r == "secrets" })
			}
			without = slices.DeleteFunc(without, func(r rbacv1.PolicyRule) bool { return len(r.Resources) == 0 })
			start(t, make(testserver.Limited(t, namespace, without...)), testlog.New())
			create(t, testserver.Config(t), namespace, "forbidden")
			got.wait(t, "forbidden", "forbidden")
		})
	}
}

// TestServerSingleNotServed: an object whose kind is not served any more is not absent, so a call does not take
// it for deleted.
func TestServerSingleNotServed(t *testing.T) {
	t.Parallel()
	namespace, config := testserver.Namespace(t), testserver.Config(t)
	g := &gadgets{t, dynamic.NewForConfigOrDie(config), "single.example.com"}
	g.install("Namespaced", "v1")
	t.Cleanup(func() { g.remove(context.Background()) })
	got := newSeen()
	op, err := operator.New(config, operator.Options{Name: "single", Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	var reader *operator.Reader[*Gadget]
	c := operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
		ReadOnly: true,
		Reconcile: func(ctx context.Context, m *corev1.ConfigMap) (reconcile.Result, error) {
			_, err := reader.Get(ctx, namespace, m.Name)
			switch {
			case apierrors.IsNotFound(err):
				got.note(m.Name, "absent")
			case errors.Is(err, crd.ErrNotServed):
				got.note(m.Name, "not served")
			default:
				got.note(m.Name, fmt.Sprint(err))
			}
			return reconcile.Result{}, nil
		},
	})
	reader = operator.Reads(c, schema.GroupVersionResource{Group: g.group, Version: "v1", Resource: "gadgets"}, operator.Reading[*Gadget]{Single: true})
	start(t, op, testlog.New())
	create(t, config, namespace, "before")
	got.wait(t, "before", "absent")
	g.create("v1", namespace, "before")
	got.wait(t, "before", fmt.Sprint(error(nil)))

	g.remove(t.Context()) // which deletes the object
	got.wait(t, "before", "absent")
	create(t, config, namespace, "after")
	got.wait(t, "after", "not served")
	got.mu.Lock()
	defer got.mu.Unlock()
	if slices.Contains(got.answers["after"], "absent") {
		t.Errorf("the reads returned %q", got.answers["after"])
	}
}
