package remember_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/controllerkit/controllerkit/managerkit/remember"
)

// Tokens reconciles ServiceAccounts, each of which names a Secret in an annotation.
type Tokens struct {
	client.Client
	Reads *remember.Reader
}

func (r *Tokens) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var account corev1.ServiceAccount
	if err := r.Get(ctx, req.NamespacedName, &account); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var secret corev1.Secret
	name := types.NamespacedName{Namespace: req.Namespace, Name: account.Annotations["token"]}
	if err := r.Reads.Get(ctx, name, &secret); err != nil { // when it appears, the key runs again
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return ctrl.Result{}, nil // what follows from the Secret
}

// The kinds that are read are given to New. There is no function that maps a Secret to ServiceAccounts.
func ExampleNew() {
	mgr, err := ctrl.NewManager(&rest.Config{Host: "shop.example"}, options) // ctrl.GetConfigOrDie()
	if err != nil {
		fmt.Println(err)
		return
	}
	reads, err := remember.New(mgr, &corev1.Secret{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = ctrl.NewControllerManagedBy(mgr).
		For(&corev1.ServiceAccount{}).
		WatchesRawSource(reads.Source()).
		Complete(reads.Reconciler(&Tokens{Client: mgr.GetClient(), Reads: reads}))
	fmt.Println("added:", err)
	// then mgr.Start(ctrl.SetupSignalHandler())

	// Output: added: <nil>
}

// Users counts the Pods of a ServiceAccount.
type Users struct{ Reads *remember.Reader }

func (r *Users) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var pods corev1.PodList // a Pod that comes or goes runs the key again
	err := r.Reads.List(ctx, &pods, client.InNamespace(req.Namespace), client.MatchingFields{"spec.serviceAccountName": req.Name})
	return ctrl.Result{}, err
}

// A list by a field needs an index. IndexField adds it to the cache of the manager; Indexed uses one that the cache has,
// for example from another controller.
func ExampleReader_Indexed() {
	mgr, err := ctrl.NewManager(&rest.Config{Host: "shop.example"}, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	reads, err := remember.New(mgr, &corev1.Pod{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = reads.Indexed(&corev1.Pod{}, "spec.serviceAccountName", func(obj client.Object) []string {
		return []string{obj.(*corev1.Pod).Spec.ServiceAccountName}
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("users").
		For(&corev1.ServiceAccount{}).
		WatchesRawSource(reads.Source()).
		Complete(reads.Reconciler(&Users{reads}))
	fmt.Println("added:", err)
	// Output: added: <nil>
}

// options are those of the examples, which open no port.
var options = ctrl.Options{
	Metrics:    metricsserver.Options{BindAddress: "0"},
	Controller: config.Controller{SkipNameValidation: new(true)},
}
