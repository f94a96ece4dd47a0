package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/template"
)

// report writes report.txt and a plot of each measure, and returns the text.
func (s *soaking) report() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%.2f hours in %d parts: %d checks, %d changes, %d faults\n", s.Elapsed.Hours(), s.Parts, s.Checks, s.Changes, total(s.Faults))
	fmt.Fprintf(&b, "%s\n", s.Identity)
	table := func(title string, counts map[string]int) {
		fmt.Fprintf(&b, "\n%s: %d\n", title, total(counts))
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(&b, "  %6d  %s\n", counts[name], name)
		}
	}
	table("faults", s.Faults)
	table("replicas that ended by themselves, as after the loss of the Lease", s.Exits)
	if n := len(s.Settled); n > 0 {
		sorted := slices.Sorted(slices.Values(s.Settled))
		fmt.Fprintf(&b, "\nseconds until all was right: median %.0f, most %.0f\n", sorted[n/2], sorted[n-1])
	}
	fmt.Fprintf(&b, "\nviolations: %d\n", len(s.Violations))
	for i, v := range s.Violations {
		fmt.Fprintf(&b, "  %d. minute %.1f: %s\n", i+1, v.Minute, strings.ReplaceAll(v.Text, "\n", "\n     "))
	}
	judged := 0
	b.WriteString("\ngrowth of the processes that lived long enough to be judged:\n")
	all := trends(s.samples)
	for _, t := range all {
		if !t.Judged {
			continue
		}
		judged++
		verdict := "flat"
		if t.Leak {
			verdict = "NOT FLAT"
		}
		last := len(t.X) - 1
		fmt.Fprintf(&b, "  %-14s %-12s %8.1f to %8.1f %-3s %+7.1f in %4.0f min  %s\n", t.Process, t.Measure.name, t.Y[0], t.Y[last], t.Measure.unit, t.Growth, t.X[last]-t.X[0], verdict)
	}
	if judged == 0 {
		b.WriteString("  none: the run is too short\n")
	}
	plots := []plot{{Title: "seconds until all was right", Lines: []line{{Name: "settled"}}}}
	for i, seconds := range s.Settled {
		plots[0].Lines[0].X = append(plots[0].Lines[0].X, float64(i))
		plots[0].Lines[0].Y = append(plots[0].Lines[0].Y, seconds)
	}
	for _, m := range measures {
		p := plot{Title: strings.TrimSpace(m.name + " " + m.unit)}
		for _, t := range all {
			if t.Measure == m {
				p.Lines = append(p.Lines, line{Name: t.Process, X: t.X, Y: t.Y})
			}
		}
		plots = append(plots, p)
	}
	for i, p := range plots {
		name := "settled.svg"
		if i > 0 {
			name = measures[i-1].name + ".svg"
		}
		text, err := p.draw()
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(s.path(name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return b.String(), os.WriteFile(s.path("report.txt"), []byte(b.String()), 0o644)
}

// A plot is a diagram with minutes, or checks, to the right.
type plot struct {
	Title string
	Lines []line
}

type line struct {
	Name string
	X, Y []float64
}

const drawing = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 300" font-family="sans-serif" font-size="12">
<rect width="800" height="300" fill="white"/>
<text x="60" y="20">{{.Title}}</text>
<path d="M60 30V260H780" fill="none" stroke="black"/>
<text x="55" y="35" text-anchor="end">{{printf "%.4g" .Top}}</text>
<text x="55" y="260" text-anchor="end">0</text>
<text x="780" y="280" text-anchor="end">{{printf "%.4g" .Right}}</text>
{{range .Lines}}<polyline points="{{.Points}}" fill="none" stroke="{{.Color}}"><title>{{html .Name}}</title></polyline>
{{end}}</svg>
`

// draw returns the plot as SVG.
func (p plot) draw() (string, error) {
	type drawn struct{ Name, Points, Color string }
	data := struct {
		Title      string
		Top, Right float64
		Lines      []drawn
	}{Title: p.Title, Top: 1e-9, Right: 1e-9}
	for _, l := range p.Lines {
		for i := range l.X {
			data.Top, data.Right = max(data.Top, l.Y[i]), max(data.Right, l.X[i])
		}
	}
	colors := []string{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f"}
	operators := map[string]int{}
	for _, l := range p.Lines {
		name, _, _ := strings.Cut(l.Name, "#") // all processes of a replica have its color
		if _, ok := operators[name]; !ok {
			operators[name] = len(operators)
		}
		var points strings.Builder
		for i := range l.X {
			fmt.Fprintf(&points, "%.1f,%.1f ", 60+720*l.X[i]/data.Right, 260-230*l.Y[i]/data.Top)
		}
		data.Lines = append(data.Lines, drawn{l.Name, points.String(), colors[operators[name]%len(colors)]})
	}
	t, err := template.New("plot").Parse(drawing)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, data)
	return b.String(), err
}
