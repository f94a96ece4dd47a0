package testprocess

import (
	"context"
	"fmt"
	"os/exec"
	"runtime/debug"
	"slices"
)

// Race reports whether the test has the race detector, and so the programs of Build.
func Race() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Build builds the program of a package into the file out, with the race detector if the test has
// it: make test does, and a plain go test is faster without.
func Build(ctx context.Context, out, pkg string) error {
	args := []string{"build", "-o", out}
	if Race() {
		args = append(args, "-race")
	}
	if text, err := exec.CommandContext(ctx, "go", append(args, pkg)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return nil
}
