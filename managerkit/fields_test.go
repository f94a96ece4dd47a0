package managerkit_test

import (
	"context"
	"net/http"
	"reflect"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// TestFields names each field of controller-runtime that managerkit reads by reflection, because
// controller-runtime has no function for it. Without the field managerkit works, and loses what the test says.
func TestFields(t *testing.T) {
	options := quiet()
	options.Scheme = scheme.Scheme
	options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil }
	mgr, err := ctrl.NewManager(&rest.Config{Host: "https://127.0.0.1:1"}, options) // which sends no request
	if err != nil {
		t.Fatal(err)
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("mk-fields").For(&corev1.ConfigMap{})
	c, err := b.Build(crreconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, nil }))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		of   any
		name string
		typ  reflect.Type
		lost string
	}{
		{b, "ctrlOptions", reflect.TypeFor[controller.Options](), "Complete does not reject the builder's WithOptions, which it replaces"},
		{b, "rawSources", reflect.TypeFor[[]source.Source](), "Complete starts a second time, on a standby, raw sources that run once"},
		{c, "LogConstructor", reflect.TypeFor[func(*ctrl.Request) logr.Logger](), "log lines of a loop have no object"},
		{mgr, "resourceLock", reflect.TypeFor[resourcelock.Interface](), "Run does not reject a manager with LeaderElection"},
	} {
		field, ok := reflect.TypeOf(f.of).Elem().FieldByName(f.name)
		if !ok || field.Type != f.typ {
			t.Errorf("%T has no field %s of type %s, it is %v: without it %s", f.of, f.name, f.typ, field.Type, f.lost)
		}
	}
}
