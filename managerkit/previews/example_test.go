package previews_test

import (
	"context"
	"fmt"
	"net/http"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/managerkit/previews"
	"github.com/controllerkit/controllerkit/preview"
)

// The main function of a manager with a flag for a preview. Here no API server exists, so the preview ends with an error.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	config, options := &rest.Config{Host: "http://127.0.0.1:1"}, ctrl.Options{LeaderElection: true, LeaderElectionID: "pods"}
	options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { // not in a real program
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
		return mapper, nil
	}
	var r crreconcile.Reconciler = crreconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, nil })
	var o controller.Options

	var p *preview.Preview
	if wanted := true; wanted { // a flag
		p = &preview.Preview{}
		previews.Prepare(p, config, &options)
		r = previews.Controller(p, "pods", &o, r)
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.Pod{}).WithOptions(o).Complete(r); err != nil {
		fmt.Println(err)
		return
	}
	if p == nil {
		err = mgr.Start(ctx)
	} else {
		cancel() // otherwise it would wait for the API server
		if err = p.Run(ctx, mgr.Start); err == nil {
			err = p.Report().WriteText(os.Stdout)
		}
	}
	fmt.Println(err)

	// Output:
	// preview: it was stopped before each key has run
}
