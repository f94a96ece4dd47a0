package metrics_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// program returns the path of prometheus or promtool, which internal/tools/prometheus pins.
func program(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join("..", "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("bin/%s is missing: make bin/prometheus bin/promtool", name)
	}
	return path
}

func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "promtool"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestRules: promtool finds no mistake in the rules, and each alert fires for its own case
// and stays quiet in the other one.
func TestRules(t *testing.T) {
	if testing.Short() {
		t.Skip("Prometheus takes 10s for these")
	}
	t.Parallel()
	promtool(t, "", "check", "rules", "alerts.yaml")
	dir := t.TempDir()
	save := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		write(t, path, content)
		return path
	}
	// The recordings take most of the time, and only the burn rates need them.
	all, alone := save("all.yaml", rules(false)), save("alone.yaml", rules(true))
	for _, set := range []struct{ file, step string }{{all, "1m"}, {all, "10m"}, {alone, "1m"}, {alone, "10m"}} {
		var b strings.Builder
		fmt.Fprintf(&b, "rule_files: [%q]\nevaluation_interval: %s\n", set.file, set.step)
		if set.file == all {
			// Otherwise promtool picks an order: the alerts may see recordings that are a step old.
			b.WriteString("group_eval_order: [controllerkit.recordings, controllerkit.alerts]\n")
		}
		b.WriteString("tests:\n")
		for _, a := range alerts() {
			if cmp.Or(a.step, "1m") == set.step && strings.Contains(a.expr, "controller:") == (set.file == all) {
				writeTest(&b, a, set.step, a.fires, a.want)
				writeTest(&b, a, set.step, a.quiet, nil)
			}
		}
		promtool(t, "", "test", "rules", save("tests.yaml", []byte(b.String())))
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeTest writes a test of an alert, which fires with the labels, or not if there are none.
func writeTest(b *strings.Builder, a alert, step string, input []sample, labels map[string]string) {
	fmt.Fprintf(b, "  - interval: %s\n    input_series:\n", step)
	for _, s := range input {
		fmt.Fprintf(b, "      - series: %q\n        values: %q\n", s.name, s.values)
	}
	b.WriteString("    alert_rule_test:\n")
	writeCase(b, a, a.at, labels)
}

// writeCase writes what is expected of an alert at a time.
func writeCase(b *strings.Builder, a alert, at string, labels map[string]string) {
	fmt.Fprintf(b, "      - eval_time: %s\n        alertname: %s\n        exp_alerts:", at, a.name)
	if labels == nil {
		b.WriteString(" []\n")
		return
	}
	summary := a.summary
	fmt.Fprintf(b, "\n          - exp_labels:\n              severity: %s\n", a.severity)
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(b, "              %s: %q\n", label, labels[label])
		summary = strings.ReplaceAll(summary, "{{ $labels."+label+" }}", labels[label])
	}
	fmt.Fprintf(b, "            exp_annotations:\n              summary: %q\n              runbook_url: %s\n", summary, a.url())
}

// TestExposition: promtool finds no mistake in what a scrape gets.
func TestExposition(t *testing.T) {
	m, _ := newMetrics(t)
	use(t, m)
	_, body := scrape(t, m.Handler())
	promtool(t, body, "check", "metrics")
}
