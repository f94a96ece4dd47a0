package rows

import "testing"

// TestFootprint: package leader imports at most 130 packages outside the standard library. An
// import in vain would double that.
func TestFootprint(t *testing.T) {
	const path = ourModule + "/leader"
	packages, err := listed(t.Context(), map[string]bool{path: true})
	if err != nil {
		t.Fatal(err)
	}
	if n, modules := closure(packages, path); n > 130 || modules > 30 {
		t.Errorf("package leader imports %d packages of %d modules, want at most 130 of 30", n, modules)
	}
}
