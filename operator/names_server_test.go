package operator_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

// New accepts each name that the API server accepts as the controller of an Event and,
// with an election, as the name of a Lease.
func TestServerNames(t *testing.T) {
	config := testserver.Config(t)
	client := kubernetes.NewForConfigOrDie(config)
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	event := func(name string) error {
		_, err := client.EventsV1().Events("default").Create(t.Context(), &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}, EventTime: metav1.NewMicroTime(time.Now()),
			Regarding: corev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "one"}, Type: corev1.EventTypeNormal,
			Reason: "Reason", Action: "Action", ReportingController: name, ReportingInstance: "one",
		}, dryRun)
		return err
	}
	for _, namespace := range []string{"", "default"} {
		lenient := testnames.Compare(t, testnames.All(t), func(name string) error {
			if namespace == "" {
				return event(name)
			}
			_, err := client.CoordinationV1().Leases(namespace).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, dryRun)
			return errors.Join(err, event(name))
		}, func(name string) error {
			_, err := operator.New(config, operator.Options{Name: name, LeaseNamespace: namespace})
			if err != nil && !strings.HasPrefix(err.Error(), "operator: Options.Name is ") {
				t.Errorf("%.80q: %v", name, err)
			}
			return err
		}, nil)
		if len(lenient) > 0 {
			t.Errorf("the API server rejects names that only a request shows: %q", lenient)
		}
	}
}

// The API server warns of a finalizer without a slash for each object that gets it. The
// clients of an operator log that once.
func TestServerWarnsOnce(t *testing.T) {
	const group = "warnings.operator.example.com"
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "plains." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": "plains", "singular": "plain", "kind": "Plain", "listKind": "PlainList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	})
	op, err := operator.New(testserver.Config(t), operator.Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(op.Config)
	if err != nil {
		t.Fatal(err)
	}
	client := dyn.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "plains"}).Namespace(testserver.Namespace(t))
	logs := testlog.New()
	ctx := logs.Context(t.Context())
	for i := range 5 {
		obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/v1", "kind": "Plain"}}
		obj.SetName(fmt.Sprintf("plain-%d", i))
		if obj, err = client.Create(ctx, obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		held, err := finalizer.Add(ctx, client, obj, "plains.example.com")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := finalizer.Remove(ctx, client, held.Object(), "plains.example.com"); err != nil {
			t.Fatal(err)
		}
	}
	lines := logs.Having("warning")
	if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0].Values["warning"]), `"plains.example.com": prefer a domain-qualified finalizer name`) {
		t.Errorf("got %v, want one line", lines)
	}
}

// A handler of the caller stays.
func TestWarningHandler(t *testing.T) {
	config := nowhere()
	config.WarningHandler = rest.NoWarnings{}
	op, err := operator.New(config, operator.Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if op.Config.WarningHandler != (rest.NoWarnings{}) || op.Config.WarningHandlerWithContext != nil {
		t.Errorf("handlers %v and %v, want the caller's alone", op.Config.WarningHandler, op.Config.WarningHandlerWithContext)
	}
}
