package alertclock

import (
	"os"
	"regexp"
	"slices"
	"testing"
	"time"
)

// TestFaster: no duration and no time of alerts.yaml is left out.
func TestFaster(t *testing.T) {
	rules, err := os.ReadFile("../../metrics/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	faster := Faster(rules, 5)
	before, after := durations.FindAllSubmatch(rules, -1), regexp.MustCompile(`(\[|offset |for: )(\d+ms)`).FindAllSubmatch(faster, -1)
	if len(before) < 50 || len(before) != len(after) {
		t.Fatalf("%d durations became %d", len(before), len(after))
	}
	for i, m := range before {
		was, is := string(m[2])+string(m[3]), string(after[i][2])
		want, err := time.ParseDuration(was)
		if m[3][0] == 'd' {
			want, err = time.ParseDuration(string(m[2]) + "h")
			want *= 24
		}
		got, gotErr := time.ParseDuration(is)
		if err != nil || gotErr != nil || got*5 != want {
			t.Errorf("%s became %s: %v, %v", was, is, err, gotErr)
		}
	}
	// The expression of a new alert may have a time that Faster does not know. Then one of these
	// lists changes: if the number is a time, Faster must divide it.
	numbers := regexp.MustCompile(`[><*=+] *\(?\d[\d.]*( \* \d[\d.]*)?`)
	var times, others []string
	known := []string{"> 3600", "> 600", "* 1800"}
	for _, text := range numbers.FindAllString(string(rules), -1) {
		if slices.Contains(known, text) {
			times = append(times, text)
		} else if !slices.Contains(others, text) {
			others = append(others, text)
		}
	}
	if want := []string{"> 3600", "> 3600", "* 1800", "> 600", "> 600"}; !slices.Equal(times, want) {
		t.Errorf("times = %q, want %q", times, want)
	}
	want := []string{"> (14.4 * 0.01", "= 80", "> (6 * 0.01", "= 240", "> (3 * 0.01", "= 100", "> (1 * 0.01", "= 10", "> 0.1", "> 2", "+ 2", "> 0", "< 0.01", "= 0", "> 4", "= 1", "> 100", "> 1", "> 3"}
	slices.Sort(others)
	slices.Sort(want)
	if !slices.Equal(others, want) {
		t.Errorf("other numbers = %q, want %q", others, want)
	}
	for _, old := range []string{"> 3600", "> 600\n", "* 1800"} {
		if regexp.MustCompile(regexp.QuoteMeta(old)).Match(faster) {
			t.Errorf("%q is left", old)
		}
	}
}
