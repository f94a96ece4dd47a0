package managerkit_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

// sitesMethods are the methods that a Client has with the signatures of a crd.Client.
type sitesMethods interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*clientSite, error)
	List(ctx context.Context, opts metav1.ListOptions) (*crd.List[*clientSite], error)
	Create(ctx context.Context, obj *clientSite, opts metav1.CreateOptions) (*clientSite, error)
	Update(ctx context.Context, obj *clientSite, opts metav1.UpdateOptions) (*clientSite, error)
	UpdateStatus(ctx context.Context, obj *clientSite, opts metav1.UpdateOptions) (*clientSite, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	DeleteCollection(ctx context.Context, opts metav1.DeleteOptions, listOpts metav1.ListOptions) error
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*clientSite, error)
	Apply(ctx context.Context, config any, opts metav1.ApplyOptions) (*clientSite, error)
	ApplyStatus(ctx context.Context, config any, opts metav1.ApplyOptions) (*clientSite, error)
}

type (
	siteClient    = *managerkit.Client[*clientSite]
	untyped       = *unstructured.Unstructured
	untypedClient = *managerkit.Client[untyped]
)

// A Client is what each package takes.
var (
	_ sitesMethods                               = (*crd.Client[*clientSite])(nil)
	_ sitesMethods                               = siteClient(nil)
	_ controllerkit.Patcher[*clientSite]         = siteClient(nil)
	_ finalizer.Children[*crd.List[*clientSite]] = siteClient(nil)
	_ status.Updater[*clientSite]                = siteClient(nil)
	_ controllerkit.Patcher[*clientSite]         = siteClient(nil)
	_ status.Applier[*clientSite, any]           = siteClient(nil)
	_ controllerkit.Getter[*clientSite]          = siteClient(nil)
	_ controllerkit.Getter[*clientSite]          = siteClient(nil)
	_ controllerkit.Patcher[*clientSite]         = siteClient(nil)
	_ controllerkit.Patcher[*clientSite]         = siteClient(nil)
	_ controllerkit.Patcher[untyped]             = untypedClient(nil)
	_ finalizer.Children[*crd.List[untyped]]     = untypedClient(nil)
	_ status.Updater[untyped]                    = untypedClient(nil)
	_ status.Applier[untyped, any]               = untypedClient(nil)
	_ controllerkit.Getter[untyped]              = untypedClient(nil)
)

// clientCalls compiles only if the compiler infers the types of each call.
func clientCalls(ctx context.Context, c siteClient, s *clientSite, u untyped) {
	mine := func(metav1.Object) bool { return true }
	_, _, _ = finalizer.Ensure(ctx, c, s, "example.com/f", nil)
	_, _ = finalizer.Add(ctx, c, s, "example.com/f")
	_, _ = finalizer.Remove(ctx, c, s, "example.com/f")
	_ = finalizer.Delete(ctx, c, s, metav1.DeletePropagationBackground)
	_, _ = finalizer.Remaining(ctx, c, metav1.ListOptions{}, mine)
	_, _ = finalizer.DeleteAll(ctx, c, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
	_, _ = status.Update(ctx, c, s, func(*clientSite) {})
	_, _ = status.Patch(ctx, c, s, func(*clientSite) {})
	_, _ = status.Apply(ctx, "m", c, s, any(u))
	_, _ = ssa.Apply(ctx, "m", c.Apply, any(u))
	_, _ = ssa.TryApply(ctx, "m", c.Apply, any(u), s)
	_, _, _ = ssa.ApplyChanged(ctx, "m", c.Apply, any(u), s, nil)
	_, _, _ = ssa.Migrate(ctx, "m", c.Patch, s)
	_, _ = consistency.ConfirmLive(ctx, c, s)
	_, _ = owner.Claim(ctx, c, s, clientSiteKind(), c, labels.Everything(), []*clientSite{s})
	_, _ = external.Once(ctx, c, s, external.Resource{})
}

// TestClientFits keeps clientCalls in use, which the compiler checks.
func TestClientFits(*testing.T) { _ = clientCalls }
