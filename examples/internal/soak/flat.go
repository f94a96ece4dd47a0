package main

import (
	"fmt"
	"slices"
)

// A sample has the resources of one process at the end of a cycle.
type sample struct {
	Minute  float64 // of the run
	Process string  // such as website-0#2, the second process of the first replica
	Values  [len(measures)]float64
}

// A measure is one of the values of a sample.
type measure struct {
	name, unit string
	floor      float64 // growth that is never a leak
}

// measures are the resources that must not grow. The floor of each is far below an hour's
// leak of one object, goroutine, series or connection in each reconcile.
var measures = [...]measure{
	{"rss", "MiB", 24},
	{"heap", "MiB", 6},
	{"goroutines", "", 30},
	{"series", "", 30},
	{"connections", "", 10},
}

const (
	minSamples = 10  // of a process, after its first ones
	relative   = 0.2 // growth, of the median, that is never a leak
	minTau     = 0.5 // of a leak; noise has about 0
	halves     = 6   // in each half of the samples a leak grows by at least a sixth; a single step does not
)

// slope returns the Theil–Sen slope, which is the median of the slopes of all pairs, and
// Kendall's tau: 1 if each value is above all earlier ones, about 0 for noise.
func slope(x, y []float64) (slope, tau float64) {
	var slopes []float64
	up := 0
	for i := range x {
		for j := range i {
			if x[i] == x[j] {
				continue
			}
			s := (y[i] - y[j]) / (x[i] - x[j])
			slopes = append(slopes, s)
			switch {
			case s > 0:
				up++
			case s < 0:
				up--
			}
		}
	}
	if len(slopes) == 0 {
		return 0, 0
	}
	slices.Sort(slopes)
	return slopes[len(slopes)/2], float64(up) / float64(len(slopes))
}

// grows returns how much y grows from the first x to the last, and whether that is a leak.
// The first fifth of the samples is the start of a process, which grows.
func grows(x, y []float64, floor float64) (growth float64, leak bool) {
	first := max(2, len(x)/5)
	if len(x)-first < minSamples {
		return 0, false
	}
	x, y = x[first:], y[first:]
	over := func(from, to int) (growth, tau float64) {
		perMinute, tau := slope(x[from:to], y[from:to])
		return perMinute * (x[to-1] - x[from]), tau
	}
	growth, tau := over(0, len(x))
	early, _ := over(0, len(x)/2)
	late, _ := over(len(x)/2, len(x))
	median := slices.Sorted(slices.Values(y))[len(y)/2]
	return growth, tau >= minTau && growth > max(floor, relative*median) && min(early, late) >= growth/halves
}

// A trend is the course of one measure of one process.
type trend struct {
	Process string
	Measure measure
	X, Y    []float64
	Growth  float64
	Judged  bool
	Leak    bool
}

// trends returns the courses of all processes, in the order of their first samples.
func trends(samples []sample) []trend {
	var names []string
	of := map[string][]sample{}
	for _, m := range samples {
		if of[m.Process] == nil {
			names = append(names, m.Process)
		}
		of[m.Process] = append(of[m.Process], m)
	}
	var all []trend
	for n, m := range measures {
		for _, name := range names {
			t := trend{Process: name, Measure: m}
			for _, one := range of[name] {
				t.X, t.Y = append(t.X, one.Minute), append(t.Y, one.Values[n])
			}
			t.Growth, t.Leak = grows(t.X, t.Y, m.floor)
			t.Judged = len(t.X)-max(2, len(t.X)/5) >= minSamples
			all = append(all, t)
		}
	}
	return all
}

// leaks returns a line for each course that is not flat.
func (s *soaking) leaks() []string {
	var lines []string
	for _, t := range trends(s.samples) {
		if t.Leak {
			lines = append(lines, fmt.Sprintf("%s: %s grows by %.1f %s in %.0f minutes", t.Process, t.Measure.name, t.Growth, t.Measure.unit, t.X[len(t.X)-1]-t.X[0]))
		}
	}
	return lines
}
