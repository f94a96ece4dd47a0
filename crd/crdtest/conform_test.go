package crdtest_test

import (
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/crd/internal/conform"
	"github.com/controllerkit/controllerkit/crd/internal/site"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] // docs/testing.md
	testserver.Main(m)
}

// newFake returns a Fake with the objects.
func newFake(t testing.TB, objects ...*site.Website) *crdtest.Fake[*site.Website] {
	t.Helper()
	fake, err := crdtest.NewFake(site.Kind(), "websites", objects...)
	if err != nil {
		t.Fatal(err)
	}
	return fake
}

// The Fake behaves as the API server does, as far as package conform asks.
//
// Proves CR5.
func TestFakeConforms(t *testing.T) {
	fake := newFake(t, site.New("other", "x"))
	t.Run("requests", func(t *testing.T) { conform.Requests(t, fake.Namespace("default"), "default") })
	t.Run("watch", func(t *testing.T) { conform.Watches(t, fake.Namespace("second")) })
}

// What package conform asks of the Fake is what the API server does.
//
// Proves CR5.
func TestServerConforms(t *testing.T) {
	c := conform.Client(t)
	first, second := testserver.Namespace(t), testserver.Namespace(t)
	t.Run("requests", func(t *testing.T) { conform.Requests(t, c.Namespace(first), first) })
	t.Run("watch", func(t *testing.T) { conform.Watches(t, c.Namespace(second)) })
}
