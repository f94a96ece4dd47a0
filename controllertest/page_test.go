package controllertest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/internal/testdocs"
)

// TestPage: each line of a timeline is in the lane of its actor, and no text of an object
// becomes HTML.
func TestPage(t *testing.T) {
	const timeline = `... 2 lines left out
   0.001s user: create a
   0.002s process 1: create configmaps b#1
   0.003s FAULT hold(configmaps)@create configmaps b#1
   0.003s watch configmaps: events are held
   0.004s   event: added configmaps/ns/<script>alert(1)</script> (version 7)
   0.005s process 2 starts
   0.006s FINDING end state: it differs by
  + configmaps/x: exists
`
	got := pageOf(timeline)
	want := pageTimeline{Lanes: []string{"user", "process 1", "process 2", "watch configmaps", "cluster"}, Rows: []pageRow{
		{Text: "... 2 lines left out", Lane: -1},
		{At: "0.001s", Text: "create a"},
		{At: "0.002s", Text: "create configmaps b#1", Lane: 1},
		{At: "0.003s", Text: "FAULT hold(configmaps)@create configmaps b#1", Class: "fault", Lane: -1},
		{At: "0.003s", Text: "events are held", Lane: 3},
		{At: "0.004s", Text: "added configmaps/ns/<script>alert(1)</script> (version 7)", Lane: 4},
		{At: "0.005s", Text: "starts", Lane: 2},
		{At: "0.006s", Text: "FINDING end state: it differs by\n  + configmaps/x: exists", Class: "finding", Lane: -1},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the page (-want +got):\n%s", diff)
	}
	folder := filepath.Join(t.TempDir(), "new")
	if err := makeFolder(folder); err != nil {
		t.Fatal(err)
	}
	report := &Report{Scenario: "a_b-1", Failures: []Failure{{Plan: "409@x#1", Timeline: timeline, Findings: []Finding{{Oracle: EndState, Text: "<b>"}}}}}
	if err := report.write(folder); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(folder, "a_b-1.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"<th>process 1</th>", "<tr class=\"fault\"><td>0.003s</td><td colspan=\"5\">FAULT hold", "&lt;script&gt;alert", "end state: &lt;b&gt;"} {
		if !strings.Contains(string(page), part) {
			t.Errorf("the page has no %q:\n%s", part, page)
		}
	}
	if strings.Contains(string(page), "<script") {
		t.Error("the page has a script")
	}
	b, err := os.ReadFile(filepath.Join(folder, "a_b-1.json"))
	var back Report
	if err != nil || json.Unmarshal(b, &back) != nil || back.Failures[0].Plan != "409@x#1" {
		t.Errorf("the JSON is %s, %v", b, err)
	}
	for _, name := range []string{"a_b-1.json", "a_b-1.html"} {
		info, err := os.Stat(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v", name, info.Mode())
		}
	}
	if err := report.write(filepath.Join(folder, "a_b-1.json")); err == nil || !strings.Contains(err.Error(), "Options.Folder: ") {
		t.Errorf("a file as folder: %v", err)
	}
}

// TestFileName: the files of two scenarios differ, and are in the folder.
func TestFileName(t *testing.T) {
	long := strings.Repeat("a", 300)
	plain := map[string]string{"a": "a", "a-b": "a-b", "A_9": "A_9", long[:100]: long[:100]}
	changed := map[string]string{"a/b": "a-b-", "a b": "a-b-", "../a": "---a-", "\u00e4": "--", "\u00f6": "--", "\xff": "--", long: long[:100] + "-", long + "b": long[:100] + "-"}
	seen := map[string]string{}
	for name, want := range plain {
		if got := fileName(name); got != want {
			t.Errorf("the file of %q is %q, want %q", name, got, want)
		}
		seen[want] = name
	}
	for name, prefix := range changed {
		got := fileName(name)
		if len(got) != len(prefix)+8 || !strings.HasPrefix(got, prefix) || unsafeInFile.MatchString(got) {
			t.Errorf("the file of %q is %q, want %q and 8 digits", name, got, prefix)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%q and %q have the file %q", name, other, got)
		}
		seen[got] = name
	}
}

// TestFirstScenarioPage: the frame of docs/first-scenario.md compiles.
func TestFirstScenarioPage(t *testing.T) {
	testdocs.Vet(t, "../docs/first-scenario.md", "page_test.go")
}
