package controllertest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// TestBadFolder: a report that cannot be stored is an error, and its findings are not lost.
//
// Proves X4.
func TestBadFolder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(folder, "copier.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		folder string
		ran    bool     // the script
		want   []string // parts of the errors
	}{
		{"no folder", filepath.Join(file, "reports"), false, []string{"controllertest: Options.Folder: mkdir " + file + ": not a directory: choose a folder that the test may write to"}},
		{"no file", folder, true, []string{"the moon is missing", "controllertest: Options.Folder: open " + filepath.Join(folder, "copier.json") + ": is a directory"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, o, ran := (&copier{}).scenario(), quick(t), false
			s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				ran = true
				return createsA(ctx, cfg, env)
			}
			s.Converged = func(*controllertest.State) error { return errors.New("the moon is missing") }
			o.Folder, o.ConvergeTimeout = test.folder, 2*time.Second
			rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, s, o) })
			for _, part := range test.want {
				if !strings.Contains(rec.errors(), part) {
					t.Errorf("Explore reports\n%s\nwant %q", rec.errors(), part)
				}
			}
			if ran != test.ran {
				t.Errorf("the script began: %t, want %t", ran, test.ran)
			}
			if report := "copier: 0 plans"; strings.Contains(rec.logs(), report) != test.ran {
				t.Errorf("the logs are\n%s\nwant %q: %t", rec.logs(), report, test.ran)
			}
		})
	}
}
