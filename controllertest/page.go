package controllertest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// makeFolder makes the folder of the report.
func makeFolder(folder string) error {
	if folder == "" {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("controllertest: Options.Folder: %w: choose a folder that the test may write to", err)
	}
	return nil
}

// write stores the report for tools and as a page with the timelines. The folder exists.
func (r *Report) write(folder string) error {
	if folder == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	var page strings.Builder
	if err := pageTemplate().Execute(&page, r); err != nil {
		return err
	}
	file := filepath.Join(folder, fileName(r.Scenario))
	if err := os.WriteFile(file+".json", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("controllertest: Options.Folder: %w", err)
	}
	if err := os.WriteFile(file+".html", []byte(page.String()), 0o600); err != nil {
		return fmt.Errorf("controllertest: Options.Folder: %w", err)
	}
	return nil
}

// fileName returns the name of a scenario if a file can have it. Otherwise it returns the
// beginning of the name, without special characters, and a hash of the name.
func fileName(scenario string) string {
	name := unsafeInFile.ReplaceAllString(scenario, "-")
	if name == scenario && len(name) <= maxFileName {
		return name
	}
	sum := sha256.Sum256([]byte(scenario))
	return name[:min(len(name), maxFileName)] + "-" + hex.EncodeToString(sum[:4])
}

const maxFileName = 100

var unsafeInFile = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// A lane is a column of a page: a process, the user, the World, a watch or the cluster.
const (
	laneUser    = "user"
	laneWorld   = "world"
	laneCluster = "cluster"
)

// A pageRow is a moment of a timeline. It is in one lane, or in all if Lane is -1.
type pageRow struct {
	At, Text, Class string
	Lane            int
}

// A pageTimeline is a timeline as a table.
type pageTimeline struct {
	Lanes []string
	Rows  []pageRow
}

// pageOf reads a timeline. A line without a time continues the line before it.
func pageOf(timeline string) pageTimeline {
	var lanes []string
	type entry struct {
		pageRow
		lane string
	}
	var entries []entry
	for line := range strings.SplitSeq(strings.TrimSuffix(timeline, "\n"), "\n") {
		parts := timelineLine.FindStringSubmatch(line)
		if parts == nil {
			if len(entries) == 0 {
				entries = append(entries, entry{pageRow{Text: line}, ""})
				continue
			}
			entries[len(entries)-1].Text += "\n" + line
			continue
		}
		lane, text, class := laneOf(parts[2])
		entries = append(entries, entry{pageRow{At: parts[1], Text: text, Class: class}, lane})
		if lane != "" && !slices.Contains(lanes, lane) {
			lanes = append(lanes, lane)
		}
	}
	slices.SortStableFunc(lanes, func(a, b string) int { return laneOrder(a) - laneOrder(b) })
	t := pageTimeline{Lanes: lanes}
	for _, e := range entries {
		e.Lane = slices.Index(lanes, e.lane)
		t.Rows = append(t.Rows, e.pageRow)
	}
	return t
}

var (
	timelineLine = regexp.MustCompile(`^ *([0-9.]+s) (.*)$`)
	processLine  = regexp.MustCompile(`^(process [0-9]+):? (.*)$`)
	watchLine    = regexp.MustCompile(`^(watch [^ ]+): (.*)$`)
)

// laneOf returns the lane of a line, or "" for all lanes, and the text without its lane.
func laneOf(line string) (lane, text, class string) {
	for _, lane := range []string{laneUser, laneWorld} {
		if rest, ok := strings.CutPrefix(line, lane+": "); ok {
			return lane, rest, ""
		}
	}
	for _, prefix := range []string{"  event: ", "  cloud: "} {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return laneCluster, rest, ""
		}
	}
	for _, pattern := range []*regexp.Regexp{processLine, watchLine} {
		if parts := pattern.FindStringSubmatch(line); parts != nil {
			return parts[1], parts[2], ""
		}
	}
	switch {
	case strings.HasPrefix(line, "FAULT "):
		return "", line, "fault"
	case strings.HasPrefix(line, "FINDING "):
		return "", line, "finding"
	}
	return "", line, ""
}

func laneOrder(lane string) int {
	switch {
	case lane == laneUser:
		return 0
	case strings.HasPrefix(lane, "process "):
		return 1
	case lane == laneWorld:
		return 2
	case lane == laneCluster:
		return 4
	}
	return 3
}

func pageTemplate() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{"timeline": pageOf}).Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Scenario}}</title><style>
body { font: 14px sans-serif; margin: 2em }
pre { white-space: pre-wrap }
table { border-collapse: collapse }
th, td { border-left: 1px solid #ccc; padding: 1px 6px; text-align: left; vertical-align: top; font: 12px monospace; white-space: pre-wrap; max-width: 40em; overflow-wrap: anywhere }
th { position: sticky; top: 0; background: #eee }
tr:nth-child(even) { background: #f8f8f8 }
tr.fault td { background: #fe9 }
tr.finding td { background: #fbb }
</style></head><body>
<h1>{{.Scenario}}</h1>
<pre>{{.}}</pre>
{{range .Failures}}<h2>{{or .Plan "without any fault"}}</h2>
{{range .Findings}}<pre>{{.Oracle}}: {{.Text}}</pre>
{{end}}{{with .Replay}}<pre>{{.}}</pre>
{{end}}{{with timeline .Timeline}}<table><thead><tr><th>time</th>{{range .Lanes}}<th>{{.}}</th>{{end}}</tr></thead>
{{$lanes := .Lanes}}{{range $row := .Rows}}<tr class="{{.Class}}"><td>{{.At}}</td>{{if lt .Lane 0}}<td colspan="{{len $lanes}}">{{.Text}}</td>{{else}}{{range $n, $lane := $lanes}}<td>{{if eq $n $row.Lane}}{{$row.Text}}{{end}}</td>{{end}}{{end}}</tr>
{{end}}</table>
{{end}}{{end}}</body></html>
`))
}
