package applyset_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// A Set works with field managers of each shape, up to the documented length: the names go
// into managedFields, and into an annotation of the parent that the next call reads.
func TestServerSetManagers(t *testing.T) {
	g := newGallery(t)
	for i, manager := range []string{"widgets", "example.com/widgets", "a/b/c/", " ", `"`, "ü\ufffd", strings.Repeat("m", 119), strings.Repeat("ü", 59)} {
		parent := g.parent(t, fmt.Sprintf("manager-%d", i))
		for range 2 {
			s := newSet(t, testserver.Config(t))
			s.Manager = manager
			if results, err := s.Apply(t.Context(), g.read(t, parent), wantConfigMap(g.one, fmt.Sprintf("member-%d", i), "blue")); err != nil {
				t.Errorf("%.40q: %v: %v", manager, results, err)
			}
		}
	}
}
