package applyset_test

import (
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// TestServerValues: if a Secret does not fit the schema, the API server quotes its values, and the error and the results
// have the path alone.
func TestServerValues(t *testing.T) {
	g := newGallery(t)
	secret := object(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"one","namespace":%q},"stringData":{"config":{"password":"hunter2"}}}`, g.two)
	const want = ".stringData.config: expected string"
	s := newSet(t, testserver.Config(t))
	results, err := s.Apply(t.Context(), g.parent(t, "parent"), applyset.Member{Object: secret})
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), want) {
		t.Errorf("Set: %v, want %s", err, want)
	}
	for _, r := range results {
		if r.Err != nil && strings.Contains(r.Err.Error(), "hunter2") {
			t.Errorf("the result is %v", r.Err)
		}
	}
	b := &applyset.Batch{Client: s.Client, Mapper: s.Mapper, Manager: manager}
	if _, err := b.Apply(t.Context(), secret); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), want) {
		t.Errorf("Batch: %v, want %s", err, want)
	}
}
