// Package alertclock makes the alerts of package metrics fire sooner, so that a test can wait for them.
package alertclock

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

var (
	// A range of a query such as [5m], an offset such as "offset 1h", or the value of "for".
	durations = regexp.MustCompile(`(\[|offset |for: )(\d+)([smhd])\b`)

	// Thresholds in seconds. alerts.yaml has no other ones: a test compares.
	seconds = regexp.MustCompile(`(_seconds\)|name\)|step\)) > (\d+)|\* (1800)\b`)
)

// Faster divides each duration of the rules, and each threshold in seconds, by n. Numbers of calls, shares, and
// the bounds of buckets stay.
func Faster(rules []byte, n int) []byte {
	rules = durations.ReplaceAllFunc(rules, func(text []byte) []byte {
		m := durations.FindSubmatch(text)
		value, _ := strconv.Atoi(string(m[2])) // the expression allows digits only
		unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[string(m[3])]
		return fmt.Appendf(nil, "%s%dms", m[1], (time.Duration(value) * unit / time.Duration(n)).Milliseconds())
	})
	return seconds.ReplaceAllFunc(rules, func(text []byte) []byte {
		m := seconds.FindSubmatch(text)
		if len(m[3]) > 0 {
			value, _ := strconv.Atoi(string(m[3]))
			return fmt.Appendf(nil, "* %g", float64(value)/float64(n))
		}
		value, _ := strconv.Atoi(string(m[2]))
		return fmt.Appendf(nil, "%s > %g", m[1], float64(value)/float64(n))
	})
}
