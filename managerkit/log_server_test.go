package managerkit_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

// keysOf returns the values of a line of JSON, and the keys that it has twice.
func keysOf(t *testing.T, line string) (values map[string]any, twice []string) {
	t.Helper()
	values = map[string]any{}
	d := json.NewDecoder(strings.NewReader(line))
	if _, err := d.Token(); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	for d.More() {
		key, err := d.Token()
		var value any
		if err := errors.Join(err, d.Decode(&value)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		name := key.(string)
		if _, ok := values[name]; ok {
			twice = append(twice, name)
		}
		values[name] = value
	}
	return values, twice
}

// TestServerLogKeys runs a reconciler with controller-runtime's workers and with Complete. Its lines,
// and the lines about its errors, have with Complete the keys and the values that they have with
// controller-runtime, and more. No line has a key twice.
func TestServerLogKeys(t *testing.T) {
	t.Parallel()
	type lines struct{ call, failure map[string]any }
	run := func(finish func(*builder.Builder, crreconcile.Reconciler) error, failure string) lines {
		namespace := testserver.Namespace(t)
		var mu sync.Mutex
		var all []string
		found := make(chan string, 100)
		options := quiet()
		options.Cache.DefaultNamespaces = map[string]cache.Config{namespace: {}}
		options.Logger = funcr.NewJSON(func(line string) {
			mu.Lock()
			all = append(all, line)
			mu.Unlock()
			if strings.Contains(line, `"msg":"Called"`) || strings.Contains(line, `"msg":"`+failure+`"`) {
				found <- line
			}
		}, funcr.Options{Verbosity: 10})
		mgr, err := ctrl.NewManager(testserver.Config(t), options)
		if err != nil {
			t.Fatal(err)
		}
		b := ctrl.NewControllerManagedBy(mgr).Named("mk-log").For(&corev1.ConfigMap{}, builder.WithPredicates(named("a")))
		if err := finish(b, crreconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
			log.FromContext(ctx).Info("Called")
			return ctrl.Result{}, crreconcile.TerminalError(errors.New("the test fails"))
		})); err != nil {
			t.Fatal(err)
		}
		stop := startManager(t, mgr)
		createConfigMap(t, namespace, "a")
		call, _ := keysOf(t, receive(t, found, "line of the call"))
		failed, _ := keysOf(t, receive(t, found, "line of the failure"))
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, line := range all {
			if _, twice := keysOf(t, line); len(twice) > 0 {
				t.Errorf("a line has %q twice: %s", twice, line)
			}
		}
		if failed["reconcileID"] != call["reconcileID"] {
			t.Errorf("the lines of a call have the IDs %v and %v", call["reconcileID"], failed["reconcileID"])
		}
		for _, values := range []map[string]any{call, failed} {
			if id, ok := values["reconcileID"].(string); !ok || len(id) != 36 {
				t.Errorf("reconcileID is %v, want a UUID", values["reconcileID"])
			}
			values["reconcileID"] = "" // differs between two runs, as the namespace does
			if values["namespace"] != namespace {
				t.Errorf("namespace is %v, want %s", values["namespace"], namespace)
			}
			values["namespace"] = ""
			if object, ok := values["ConfigMap"].(map[string]any); ok {
				object["namespace"] = ""
			}
			for _, own := range []string{"level", "msg", "logger"} { // of the logger
				delete(values, own)
			}
		}
		return lines{call, failed}
	}
	plain := run(func(b *builder.Builder, r crreconcile.Reconciler) error { return b.Complete(r) }, "Reconciler error")
	ours := run(func(b *builder.Builder, r crreconcile.Reconciler) error {
		return managerkit.Complete(b, r, &reconcile.Controller[ctrl.Request]{}, controller.Options{})
	}, "Reconcile failed")
	want := []string{"ConfigMap", "controller", "controllerGroup", "controllerKind", "name", "namespace", "reconcileID"}
	if got := slices.Sorted(maps.Keys(plain.call)); !slices.Equal(got, want) {
		t.Errorf("controller-runtime has the keys %q, want %q", got, want)
	}
	for _, line := range []struct {
		name        string
		plain, ours map[string]any
		more        []string
	}{
		{"the call", plain.call, ours.call, []string{"key", "triggers"}},
		{"the failure", plain.failure, ours.failure, nil},
	} {
		for key, value := range line.plain {
			got, ok := line.ours[key]
			a, _ := json.Marshal(value)
			b, _ := json.Marshal(got)
			if !ok || string(a) != string(b) {
				t.Errorf("%s: %s is %s with Complete, %s with controller-runtime", line.name, key, b, a)
			}
			delete(line.ours, key)
		}
		if got := slices.Sorted(maps.Keys(line.ours)); line.more != nil && !slices.Equal(got, line.more) {
			t.Errorf("%s: Complete adds %q, want %q", line.name, got, line.more)
		} else {
			t.Logf("%s: Complete adds %q", line.name, got)
		}
	}
}
