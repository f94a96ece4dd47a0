package integration_test

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/controllerkit/controllerkit/examples/tenant/internal/observer"
	"github.com/controllerkit/controllerkit/internal/lab"
)

// TestStartFails checks that a process that cannot start ends within a minute, with an error
// that names the cause and its StartTimeout of 20 seconds.
func TestStartFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.AllowRefusals() // of some cases

	closed := &lab.Server{URL: "https://127.0.0.1:1"} // nobody listens on that port

	for _, tt := range []struct {
		name    string
		args    []string
		prepare func(t *testing.T) (kubeconfig string)
		want    []string
	}{
		{
			name: "unreachable API server",
			prepare: func(t *testing.T) string {
				file, err := lab.LimitedKubeconfig(t.Context(), w.admin, observer.SystemNamespace, observer.ServiceAccount, t.TempDir(), closed)
				if err != nil {
					t.Fatal(err)
				}
				return file
			},
			want: []string{"the API server " + closed.URL, "connection refused", "(after 20s)"},
		},
		{
			name: "Lease in a namespace without rights",
			args: []string{"-leader-elect", "-leader-election-namespace", "kube-system"},
			prepare: func(t *testing.T) string {
				file, err := lab.LimitedKubeconfig(t.Context(), w.admin, observer.SystemNamespace, observer.ServiceAccount, t.TempDir(), nil)
				if err != nil {
					t.Fatal(err)
				}
				return file
			},
			want: []string{"leases", "kube-system", "get", "within StartTimeout (20s)"},
		},
		{
			name: "no role",
			prepare: func(t *testing.T) string {
				server := newWorld(t)
				file, err := lab.LimitedKubeconfig(t.Context(), server.admin, observer.SystemNamespace, observer.ServiceAccount, t.TempDir(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := server.Kube.RbacV1().ClusterRoleBindings().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=tenant-controller"}); err != nil {
					t.Fatal(err)
				}
				return file
			},
			want: []string{"tenants", "list", "forbidden", "within 20s"},
		},
		{
			name: "no CRD",
			prepare: func(t *testing.T) string {
				server := newWorld(t)
				file, err := lab.LimitedKubeconfig(t.Context(), server.admin, observer.SystemNamespace, observer.ServiceAccount, t.TempDir(), nil)
				if err != nil {
					t.Fatal(err)
				}
				server.Stop() // without the CRD its informer of tenants would log errors until the end
				if err := server.Kube.Discovery().RESTClient().Delete().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tenants.tenancy.example.com").Do(t.Context()).Error(); err != nil {
					t.Fatal(err)
				}
				// The API server serves the resource for a moment longer, of which no event tells.
				if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
					err := server.Kube.Discovery().RESTClient().Get().AbsPath("/apis/tenancy.example.com/v1alpha1/tenants").Do(ctx).Error()
					return apierrors.IsNotFound(err), nil
				}); err != nil {
					t.Fatal(err)
				}
				return file
			},
			want: []string{"tenants.tenancy.example.com", "install its CustomResourceDefinition", "(after 20s)"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kubeconfig := tt.prepare(t)
			p, err := lab.StartProcess(tenantProgram(t), append([]string{
				"-kubeconfig", kubeconfig, "-billing-url", w.billingURL, "-listen", "127.0.0.1:0",
			}, tt.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Kill)
			begin := time.Now()
			select {
			case <-p.Ended():
				t.Logf("ended after %v", time.Since(begin))
			case <-time.After(time.Minute):
				t.Fatalf("still running after a minute:\n%s", p.Tail(20))
			}
			if code := p.ExitCode(); code != 1 {
				t.Errorf("exit code = %d, want 1", code)
			}
			_, last, _ := strings.Cut("\n"+p.Output(), "\ntenant: ")
			for _, want := range tt.want {
				if !strings.Contains(last, want) {
					t.Errorf("the error at the end does not name %q:\n%s", want, last)
				}
			}
		})
	}
}

// TestBuiltInBilling checks that the program runs with its built-in billing service,
// as in the README.
func TestBuiltInBilling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	listen, err := lab.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	file, err := lab.LimitedKubeconfig(t.Context(), w.admin, observer.SystemNamespace, observer.ServiceAccount, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := lab.StartProcess(tenantProgram(t), "-kubeconfig", file, "-listen", listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	w.create(tenant("blue"))
	w.await(func() error { return w.Ready("blue") })
	w.delete("blue")
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}
