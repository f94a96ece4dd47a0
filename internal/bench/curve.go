package bench

import (
	"encoding/csv"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// point is one measured value of a contender.
type point struct {
	x float64
	y Stat
}

// chart has the points of one figure, by contender.
type chart struct {
	figure string
	names  []string // ours first
	points map[string][]point
}

// charts returns a chart for each figure of a row with a Curve. A contender with several
// rivals has the points of its first pair.
func charts(r Result) (all []*chart) {
	for _, l := range r.Lines {
		i := slices.IndexFunc(all, func(c *chart) bool { return c.figure == l.Figure })
		if i < 0 {
			i = len(all)
			all = append(all, &chart{figure: l.Figure, points: map[string][]point{}})
		}
		c := all[i]
		add := func(name string, y Stat) {
			if !slices.Contains(c.names, name) {
				c.names = append(c.names, name)
			}
			if !slices.ContainsFunc(c.points[name], func(p point) bool { return p.x == l.X }) {
				c.points[name] = append(c.points[name], point{l.X, y})
			}
		}
		add("controllerkit", l.Ours)
		add(l.Rival, l.Theirs)
	}
	return all
}

// Draw writes the curve of a row to two files of a folder, as CSV and as SVG.
func Draw(dir string, r Result) error {
	all := charts(r)
	var table strings.Builder
	w := csv.NewWriter(&table)
	rows := [][]string{{r.Row.Curve, "figure", "contender", "median", "min", "max"}}
	for _, c := range all {
		for _, name := range c.names {
			for _, p := range c.points[name] {
				rows = append(rows, []string{short(p.x), c.figure + "/" + r.Row.Op, name, short(p.y.Median), short(p.y.Min), short(p.y.Max)})
			}
		}
	}
	if err := w.WriteAll(rows); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	base := filepath.Join(dir, filepath.Base(r.Row.Name))
	if err := os.WriteFile(base+".csv", []byte(table.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(base+".svg", []byte(draw(r.Row, all)), 0o644)
}

func short(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// The size of a chart, and of the area that its axes enclose.
const (
	chartWidth, chartHeight          = 640.0, 300.0
	left, right, chartTop, chartFoot = 80.0, 470.0, 30.0, 250.0
)

var colors = []string{"#0b62a4", "#c0392b", "#3f7f3f", "#8e44ad"}

// draw returns the charts as SVG, one below the other, with logarithmic axes.
func draw(row Row, all []*chart) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n", chartWidth, chartHeight*float64(len(all)))
	fmt.Fprintln(&b, `<rect width="100%" height="100%" fill="white"/>`)
	for i, c := range all {
		fmt.Fprintf(&b, `<g transform="translate(0 %g)">`+"\n", chartHeight*float64(i))
		c.draw(&b, row)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c *chart) draw(b *strings.Builder, row Row) {
	var xs, ys []float64
	for _, points := range c.points {
		for _, p := range points {
			xs = append(xs, p.x)
			if ys = append(ys, p.y.Max); p.y.Min > 0 {
				ys = append(ys, p.y.Min)
			}
		}
	}
	xTicks, yTicks := ticks(xs), ticks(ys)
	at := func(v float64, ticks []float64, from, to float64) float64 {
		low, high := math.Log(ticks[0]), math.Log(ticks[len(ticks)-1])
		return from + (to-from)*(math.Log(max(v, ticks[0]))-low)/(high-low)
	}
	atX := func(v float64) float64 { return at(v, xTicks, left, right) }
	atY := func(v float64) float64 { return at(v, yTicks, chartFoot, chartTop) }
	text := func(x, y float64, anchor, color, s string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, anchor, color, html.EscapeString(s))
	}
	text(left, 18, "start", "black", c.figure+"/"+row.Op)
	text((left+right)/2, chartFoot+36, "middle", "black", row.Curve)
	for _, v := range xTicks {
		fmt.Fprintf(b, `<path d="M%.1f %gV%g" stroke="#ddd"/>`+"\n", atX(v), chartTop, chartFoot)
		text(atX(v), chartFoot+16, "middle", "black", number(v))
	}
	for _, v := range yTicks {
		fmt.Fprintf(b, `<path d="M%g %.1fH%g" stroke="#ddd"/>`+"\n", left, atY(v), right)
		text(left-6, atY(v)+4, "end", "black", number(v))
	}
	for i, name := range c.names {
		color, line := colors[i%len(colors)], ""
		for _, p := range c.points[name] {
			line += fmt.Sprintf("%.1f,%.1f ", atX(p.x), atY(p.y.Median))
			fmt.Fprintf(b, `<path d="M%.1f %.1fV%.1f" stroke="%s"/>`+"\n", atX(p.x), atY(p.y.Min), atY(p.y.Max), color) // the spread
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", line, color)
		text(right+10, chartTop+14+18*float64(i), "start", color, name)
	}
}

// ticks returns powers of ten that enclose the positive values, at least two.
func ticks(values []float64) (all []float64) {
	values = slices.DeleteFunc(values, func(v float64) bool { return v <= 0 })
	if len(values) == 0 {
		return []float64{1, 10}
	}
	low, high := math.Floor(math.Log10(slices.Min(values))), math.Ceil(math.Log10(slices.Max(values)))
	for e := low; e <= max(high, low+1); e++ {
		v, _ := strconv.ParseFloat(fmt.Sprintf("1e%g", e), 64) // exactly
		all = append(all, v)
	}
	return all
}
