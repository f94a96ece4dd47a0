// Command demo runs the tenant controller on a real API server and prints the
// events: creation, an edit, the repair of a deleted child, a deletion that waits
// for a failing service, a hand-over between two replicas, and the death of a replica in the
// middle of a request to the service.
//
// make demo builds the programs and runs it. The demo checks the result of each
// step, and its exit code is 0 only if all checks pass. make demo KEEP=1 keeps the API server and
// the last replica, for kubectl, until Ctrl-C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/config"
	"github.com/controllerkit/controllerkit/examples/tenant/internal/observer"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	controlplane := flag.String("controlplane", "bin/controlplane", "`path` of the controlplane program")
	controller := flag.String("controller", "bin/tenant", "`path` of the controller program")
	keep := flag.Bool("keep", false, "keep everything running after the last step, until SIGINT or SIGTERM")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unexpected argument %q: use flags only\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	d := &demo{print: newPrinter(os.Stdout), controller: *controller, keep: *keep, opening: make(chan struct{}, 1)}
	if err := d.run(ctx, *controlplane); err != nil {
		d.print.failed(err)
		os.Exit(1)
	}
}

// demo is the state of one run.
type demo struct {
	print      *printer
	controller string
	keep       bool

	dir        string
	kubeconfig string // for the service account of config/rbac.yaml
	billing    *billing.Server
	billingURL string
	opening    chan struct{} // gets a value when a request to open an account arrives
	*observer.Observer
	replicas map[string]*lab.Process
}

// within bounds each wait. Deletions of namespaces and owned objects take the
// longest.
const within = 60 * time.Second

func (d *demo) run(ctx context.Context, controlplane string) (err error) {
	if d.dir, err = os.MkdirTemp("", "demo-"); err != nil {
		return err
	}
	defer os.RemoveAll(d.dir)

	d.print.step("Start etcd and kube-apiserver on loopback, with a temporary data folder")
	adminKubeconfig, stopServer, err := d.startServer(ctx, controlplane)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopServer()) }()
	stopBilling, err := d.startBilling()
	if err != nil {
		return err
	}
	defer stopBilling()
	cfg, err := clientcmd.BuildConfigFromFlags("", adminKubeconfig)
	if err != nil {
		return err
	}

	d.print.step("Install the CustomResourceDefinition and the controller's RBAC role")
	if err := lab.Install(ctx, cfg, config.Files, "crd.yaml", "rbac.yaml"); err != nil {
		return err
	}
	d.print.check("the API server serves Tenants; the controller gets only the rights in config/rbac.yaml")
	if d.kubeconfig, err = lab.LimitedKubeconfig(ctx, cfg, observer.SystemNamespace, observer.ServiceAccount, d.dir, nil); err != nil {
		return err
	}
	if d.Observer, err = observer.Start(context.WithoutCancel(ctx), cfg, d.print.event); err != nil {
		return err
	}
	defer d.Stop()

	d.replicas = map[string]*lab.Process{}
	defer func() {
		for name, p := range d.replicas { // empty unless a step failed
			if err != nil {
				d.print.quote("last lines of replica "+name, p.Tail(15))
			}
			p.Kill()
		}
	}()
	for _, step := range []func(context.Context) error{
		d.elect, d.create, d.edit, d.repair, d.deleteWhileBillingFails, d.handOver, d.kill,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if d.keep {
		if err := d.wait(ctx, adminKubeconfig); err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx) // the signal that ended the wait
	}
	if err := d.stop(ctx); err != nil {
		return err
	}
	d.print.summary()
	return nil
}

func (d *demo) startServer(ctx context.Context, bin string) (kubeconfig string, stop func() error, err error) {
	kubeconfig = d.dir + "/admin.kubeconfig"
	p, err := lab.StartApart(bin, "-kubeconfig", kubeconfig)
	if err != nil {
		return "", nil, err
	}
	begin := time.Now()
	if err := p.AwaitOutput(ctx, time.Minute, "controlplane: ready"); err != nil {
		p.Kill()
		return "", nil, fmt.Errorf("controlplane: %w", err)
	}
	d.print.check("a real API server is ready after %.1fs", time.Since(begin).Seconds())
	return kubeconfig, p.Stop, nil
}

// startBilling serves the external service from this process.
func (d *demo) startBilling() (stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d.billing = new(billing.Server)
	d.billingURL = "http://" + ln.Addr().String()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			select {
			case d.opening <- struct{}{}:
			default:
			}
		}
		d.billing.ServeHTTP(w, r)
	})
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(ln) // until Close
	}()
	return func() {
		_ = d.billing.SetMode(billing.OK, 0) // a hanging request would block Close
		srv.Close()
		<-served
	}, nil
}

func (d *demo) startReplica(name string) error {
	p, err := lab.StartApart(d.controller,
		"-kubeconfig", d.kubeconfig,
		"-billing-url", d.billingURL,
		"-leader-elect", "-leader-election-namespace", observer.SystemNamespace,
		"-lease-duration", "6s", "-renew-deadline", "4s", "-retry-period", "1s",
		"-listen", "127.0.0.1:0",
	)
	if err != nil {
		return err
	}
	d.replicas[name] = p
	return nil
}

// await waits until cond returns nil. It returns an error if a replica ends.
func (d *demo) await(ctx context.Context, cond func() error) error {
	return d.Await(ctx, within, func() error {
		for name, p := range d.replicas {
			select {
			case <-p.Ended():
				return fmt.Errorf("replica %s has ended with exit code %d", name, p.ExitCode())
			default:
			}
		}
		return cond()
	})
}

func (d *demo) elect(ctx context.Context) error {
	d.print.step("Start two replicas of the controller with leader election")
	if err := d.startReplica("A"); err != nil {
		return err
	}
	err := d.await(ctx, func() error {
		if d.Leader() == "" {
			return errors.New("the Lease has no holder")
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := d.startReplica("B"); err != nil {
		return err
	}
	d.print.check("replica A holds the Lease %s/%s and replica B is on standby", observer.SystemNamespace, observer.LeaseName)
	return nil
}

func tenant(name string) *v1alpha1.Tenant {
	return &v1alpha1.Tenant{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.TenantSpec{
			Members: []string{"alice", "group:" + name},
			Quota: corev1.ResourceList{
				corev1.ResourceCPU:  resource.MustParse("4"),
				corev1.ResourcePods: resource.MustParse("10"),
			},
			NetworkIsolation: true,
			Account:          v1alpha1.AccountSpec{Plan: v1alpha1.PlanStandard},
		},
	}
}

func (d *demo) create(ctx context.Context) error {
	d.print.step("Create three tenants")
	names := []string{"blue", "green", "red"}
	for _, name := range names {
		if _, err := d.Tenants.TenancyV1alpha1().Tenants().Create(ctx, tenant(name), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := d.await(ctx, func() error { return errors.Join(d.Ready(name), d.provisioned(name)) }); err != nil {
			return err
		}
	}
	if n := len(d.billing.Accounts()); n != len(names) {
		return fmt.Errorf("billing has %d accounts, want %d", n, len(names))
	}
	d.print.check("all three are Ready, each with a namespace, a quota, a role binding, a network policy and one account")
	return nil
}

// provisioned returns nil if all objects that tenant specifies exist.
func (d *demo) provisioned(name string) error {
	_, err := d.Namespaces.Get(name)
	_, quotaErr := d.quota(name)
	bindings, bindingErr := d.RoleBindings.RoleBindings(name).List(labels.Everything())
	policies, policyErr := d.NetworkPolicies.NetworkPolicies(name).List(labels.Everything())
	if len(bindings) != 1 || len(policies) != 1 {
		err = errors.Join(err, fmt.Errorf("namespace %s has %d role bindings and %d network policies, want one each", name, len(bindings), len(policies)))
	}
	return errors.Join(err, quotaErr, bindingErr, policyErr)
}

func (d *demo) quota(namespace string) (*corev1.ResourceQuota, error) {
	quotas, err := d.Quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	if len(quotas) != 1 {
		return nil, fmt.Errorf("namespace %s has %d quotas, want one", namespace, len(quotas))
	}
	return quotas[0], nil
}

func (d *demo) edit(ctx context.Context) error {
	d.print.step("Edit tenant green: 20 Pods instead of 10, and no network isolation")
	_, err := d.Tenants.TenancyV1alpha1().Tenants().Patch(ctx, "green", types.MergePatchType,
		[]byte(`{"spec":{"quota":{"pods":"20"},"networkIsolation":false}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	err = d.await(ctx, func() error {
		if t, err := d.TenantLister.Get("green"); err != nil || t.Generation < 2 {
			return errors.Join(err, errors.New("the observer has not seen the edit"))
		}
		q, err := d.quota("green")
		if err != nil {
			return err
		}
		policies, err := d.NetworkPolicies.NetworkPolicies("green").List(labels.Everything())
		if err != nil || len(policies) > 0 {
			return errors.Join(err, fmt.Errorf("namespace green has %d network policies, want none", len(policies)))
		}
		return errors.Join(observer.HasPods(q, 20), d.Ready("green"))
	})
	if err != nil {
		return err
	}
	d.print.check("the controller changed the quota, deleted the network policy and reported the new generation in the status")
	return nil
}

func (d *demo) repair(ctx context.Context) error {
	d.print.step("Delete the quota of tenant blue with another client")
	before, err := d.quota("blue")
	if err != nil {
		return err
	}
	if err := d.Kube.CoreV1().ResourceQuotas("blue").Delete(ctx, before.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	err = d.await(ctx, func() error {
		after, err := d.quota("blue")
		if err == nil && after.UID == before.UID {
			err = errors.New("the observer has not seen the deletion")
		}
		return err
	})
	if err != nil {
		return err
	}
	d.print.check("the controller created it again")
	return nil
}

func (d *demo) deleteWhileBillingFails(ctx context.Context) error {
	d.print.step("Make the billing service fail and delete tenant red")
	if err := d.billing.SetMode(billing.Fail, 0); err != nil {
		return err
	}
	if err := d.Tenants.TenancyV1alpha1().Tenants().Delete(ctx, "red", metav1.DeleteOptions{}); err != nil {
		return err
	}
	err := d.await(ctx, func() error {
		t, err := d.TenantLister.Get("red")
		if err != nil {
			return err
		}
		if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionTerminating); c == nil || c.Reason != "StepFailed" {
			return errors.New("tenant red reports no failed step of its cleanup")
		}
		return d.NamespaceGone("red")
	})
	if err != nil {
		return err
	}
	if n := len(d.billing.Accounts()); n != 3 {
		return fmt.Errorf("billing has %d accounts while it fails, want 3", n)
	}
	d.print.check("its namespace is gone; its finalizer blocks the deletion because the account is still open, and its status reports the reason")

	d.print.step("Make the billing service work again")
	if err := d.billing.SetMode(billing.OK, 0); err != nil {
		return err
	}
	err = d.await(ctx, func() error {
		if _, err := d.TenantLister.Get("red"); !apierrors.IsNotFound(err) {
			return errors.Join(err, errors.New("tenant red still exists"))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n := len(d.billing.Accounts()); n != 2 {
		return fmt.Errorf("billing has %d accounts, want 2", n)
	}
	d.print.check("the controller closed the account first, and then the API server removed the tenant")
	return nil
}

func (d *demo) handOver(ctx context.Context) error {
	d.print.step("Stop replica A with SIGTERM, as the kubelet does")
	old := d.Leader()
	begin := time.Now()
	if err := d.stopReplica("A"); err != nil {
		return err
	}
	d.print.check("it finished its reconciles, released the Lease and exited with code 0 within %dms", time.Since(begin).Milliseconds())
	err := d.await(ctx, func() error {
		if leader := d.Leader(); leader == "" || leader == old {
			return fmt.Errorf("the Lease is held by %q", leader)
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.print.check("replica B leads %dms after the signal", time.Since(begin).Milliseconds())
	if _, err := d.Tenants.TenancyV1alpha1().Tenants().Create(ctx, tenant("yellow"), metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := d.await(ctx, func() error { return errors.Join(d.Ready("yellow"), d.provisioned("yellow")) }); err != nil {
		return err
	}
	d.print.check("replica B reconciles: a new tenant is Ready")
	return nil
}

// kill kills the leader while the billing service handles its request. The service opens the
// account, and nobody has its name.
func (d *demo) kill(ctx context.Context) error {
	d.print.step("Start replica C, and kill replica B with SIGKILL in the middle of a request to the billing service")
	if err := d.startReplica("C"); err != nil {
		return err
	}
	if err := d.billing.SetMode(billing.Slow, time.Second); err != nil {
		return err
	}
	select {
	case <-d.opening: // of an earlier step
	default:
	}
	old := d.Leader()
	if _, err := d.Tenants.TenancyV1alpha1().Tenants().Create(ctx, tenant("violet"), metav1.CreateOptions{}); err != nil {
		return err
	}
	select {
	case <-d.opening:
	case <-time.After(within):
		return fmt.Errorf("no request to open the account of tenant violet within %v", within)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	begin := time.Now()
	d.replicas["B"].Kill()
	delete(d.replicas, "B")
	err := d.await(ctx, func() error {
		if leader := d.Leader(); leader == "" || leader == old {
			return fmt.Errorf("the Lease is held by %q", leader)
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.print.check("the Lease of the dead replica expired, and replica C leads %.1fs after the kill", time.Since(begin).Seconds())
	if err := d.billing.SetMode(billing.OK, 0); err != nil {
		return err
	}
	if err := d.await(ctx, func() error { return errors.Join(d.Ready("violet"), d.provisioned("violet")) }); err != nil {
		return err
	}
	n := 0
	for _, a := range d.billing.Accounts() {
		if a.Tenant == "violet" {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("billing has %d accounts of tenant violet, want 1", n)
	}
	d.print.check("tenant violet is Ready, with the one account that replica B had asked for")
	return nil
}

// wait prints how to look at what runs, and waits for the signal to go on.
func (d *demo) wait(ctx context.Context, kubeconfig string) error {
	d.print.step("Keep the API server and replica C until Ctrl-C")
	d.print.quote("in another terminal", "export KUBECONFIG="+kubeconfig+`
kubectl get tenants
kubectl describe tenant green
kubectl -n blue delete resourcequota --all   # comes back
kubectl delete tenant yellow`)
	p := d.replicas["C"]
	select {
	case <-ctx.Done():
		return nil
	case <-p.Ended():
		return fmt.Errorf("replica C has ended with exit code %d", p.ExitCode())
	}
}

func (d *demo) stop(ctx context.Context) error {
	d.print.step("Stop replica C")
	if err := d.stopReplica("C"); err != nil {
		return err
	}
	err := d.await(ctx, func() error {
		if leader := d.Leader(); leader != "" {
			return fmt.Errorf("the Lease is still held by %s", leader)
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.print.check("it exited with code 0, and the Lease has no holder")
	return nil
}

func (d *demo) stopReplica(name string) error {
	p := d.replicas[name]
	delete(d.replicas, name)
	if err := p.Stop(); err != nil {
		return fmt.Errorf("replica %s: %w", name, err)
	}
	return nil
}
