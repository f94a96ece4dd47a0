package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Environment describes the machine and the software of a measurement.
type Environment struct {
	CPU         string
	Cores       int
	MaxProcs    int // GOMAXPROCS
	OS, Arch    string
	Go          string
	Date        string            // 2006-01-02
	Modules     map[string]string // versions by path
	RaceEnabled bool              // the figures are not meaningful
}

// Here returns the environment of this process.
func Here(ctx context.Context) Environment {
	env := Environment{
		CPU:      cpu(ctx),
		Cores:    runtime.NumCPU(),
		MaxProcs: runtime.GOMAXPROCS(0),
		OS:       runtime.GOOS,
		Arch:     runtime.GOARCH,
		Go:       runtime.Version(),
		Date:     time.Now().UTC().Format(time.DateOnly),
		Modules:  map[string]string{},
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			env.Modules[m.Path] = m.Version
		}
		for _, s := range info.Settings {
			env.RaceEnabled = env.RaceEnabled || s.Key == "-race" && s.Value == "true"
		}
	}
	return env
}

// cpu returns the model of the processor.
func cpu(ctx context.Context) string {
	var model string
	switch runtime.GOOS {
	case "linux":
		info, _ := os.ReadFile("/proc/cpuinfo") // the file or the model may be missing
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	case "darwin":
		out, _ := exec.CommandContext(ctx, "sysctl", "-n", "machdep.cpu.brand_string").Output()
		model = strings.TrimSpace(string(out))
	}
	return cmp.Or(model, "a CPU of unknown model")
}

// describe returns one line about the environment and the repeats of a row.
func (e Environment) describe(r Result) string {
	parts := []string{
		e.CPU,
		fmt.Sprintf("%d cores", e.Cores),
		fmt.Sprintf("GOMAXPROCS %d", e.MaxProcs),
		e.OS + "/" + e.Arch,
		e.Go,
	}
	for _, path := range r.Modules {
		if !strings.Contains(path, " ") {
			path += " " + cmp.Or(e.Modules[path], "of unknown version")
		}
		parts = append(parts, path)
	}
	repeats := 0
	for _, l := range r.Lines {
		repeats = max(repeats, l.Repeats)
	}
	text := fmt.Sprintf("Measured on %s: %s; repeats: %d", e.Date, strings.Join(parts, ", "), repeats)
	listed := map[string]bool{}
	for _, l := range r.Lines {
		if fewer := fmt.Sprintf(", %d against %s", l.Repeats, l.Rival); l.Repeats < repeats && !listed[fewer] {
			listed[fewer] = true
			text += fewer
		}
	}
	return text + "."
}

// preamble is the beginning of RESULTS.md.
const preamble = `# Results

This file compares the library with client-go and controller-runtime, on the
machine that each section names. ` + "`make bench`" + ` writes it; a run of some rows
replaces only their sections. Each figure is the median, with the lowest and the
highest value in parentheses. A ratio is the library's figure divided by the
rival's: the median of the ratios of paired runs, where one follows the other
directly. Goals are checked against the printed numbers, and a goal with "each"
against the worst repeat.
`

const heading = "## "

// Section returns the section of RESULTS.md about one row.
func Section(r Result, env Environment) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n\n%s\n\n", heading, r.Row.Name, r.Row.About)
	fmt.Fprintln(&b, "| case | figure | controllerkit | rival | rival's figure | ratio | goal | |")
	fmt.Fprintln(&b, "|---|---|---|---|---|---|---|---|")
	for _, l := range r.Lines {
		goal, verdict := "", ""
		if l.Goal != nil {
			goal = "≤ " + number(l.Goal.AtMost)
			if l.Goal.Rival != "" {
				goal = "ratio " + goal
			}
			if l.Goal.Worst {
				goal = "each " + goal
			}
			if l.Goal.Stretch > 0 {
				goal += ", stretch " + number(l.Goal.Stretch)
			}
			switch pass, stretch := l.Pass(); {
			case stretch:
				verdict = "pass, stretch too"
			case pass:
				verdict = "pass"
			default:
				verdict = "falls short"
			}
		}
		ratio := ""
		if !math.IsNaN(l.Ratio.Median) {
			ratio = l.Ratio.show(func(v float64) string { return strconv.FormatFloat(v, 'f', ratioDecimals, 64) })
		}
		fmt.Fprintf(&b, "| %s | %s/%s | %s | %s | %s | %s | %s | %s |\n",
			l.Case, l.Figure, r.Row.Op, l.Ours.show(figure), l.Rival, l.Theirs.show(figure), ratio, goal, verdict)
	}
	fmt.Fprintf(&b, "\n%s\n", env.describe(r))
	return b.String()
}

// show formats a Stat. It omits the spread if the printed values are equal.
func (s Stat) show(format func(float64) string) string {
	median, low, high := format(s.Median), format(s.Min), format(s.Max)
	if low == high {
		return median
	}
	return fmt.Sprintf("%s (%s–%s)", median, low, high)
}

// round rounds a figure to two decimals below 10, one below 100 and no decimals above.
func round(v float64) float64 {
	switch a := math.Abs(v); {
	case a < 10:
		return math.Round(v*100) / 100
	case a < 100:
		return math.Round(v*10) / 10
	}
	return math.Round(v)
}

// ratioDecimals is one more than the decimals of goals.
const ratioDecimals = 3

func roundRatio(v float64) float64 { return math.Round(v*1000) / 1000 }

// figure formats a rounded figure.
func figure(v float64) string { return number(round(v)) }

// number formats v with a comma between thousands and without trailing zeros.
func number(v float64) string {
	whole, fraction, _ := strings.Cut(strconv.FormatFloat(v, 'f', -1, 64), ".")
	sign := ""
	if rest, ok := strings.CutPrefix(whole, "-"); ok {
		sign, whole = "-", rest
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction != "" {
		whole += "." + fraction
	}
	return sign + whole
}

// Merge returns the text of RESULTS.md with the given sections by row. Other rows keep
// their sections of old. Merge drops sections of unknown rows, because they cannot be
// measured again.
func Merge(old string, sections map[string]string, known []string) string {
	all := map[string]string{}
	name := ""
	for line := range strings.Lines(old) {
		if rest, ok := strings.CutPrefix(line, heading); ok {
			name = strings.TrimSpace(rest)
		}
		if name != "" {
			all[name] += line
		}
	}
	for name, section := range sections {
		all[name] = section
	}
	var b strings.Builder
	b.WriteString(preamble)
	for _, name := range slices.Sorted(slices.Values(known)) {
		if section := strings.TrimSpace(all[name]); section != "" {
			b.WriteString("\n" + section + "\n")
		}
	}
	return b.String()
}

// Update writes one row's section to the file at path. If the file does not exist, it
// creates it. The file is replaced atomically.
func Update(path string, r Result, env Environment, known []string) error {
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	text := Merge(string(old), map[string]string{r.Row.Name: Section(r, env)}, known)
	temp, err := os.CreateTemp(filepath.Dir(path), ".results-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.WriteString(text)
	if closed := temp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Chmod(temp.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	return err
}
