// Package stacks finds the stacks of goroutines by their pprof labels.
package stacks

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"strings"
)

// Labelled returns the stacks of the goroutines whose pprof label key has the value, or
// a value that begins with the value and a slash. It returns at most limit bytes and a
// line that reports a cut, and an explanation if there are no such goroutines.
//
// Identical stacks are shown once, with their count. The call stops all goroutines of
// the process for a moment that grows with their number.
func Labelled(key, value string, limit int) string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return "no stacks: " + err.Error()
	}
	own := fmt.Sprintf("%q:%q", key, value)
	nested := strings.TrimSuffix(own, `"`) + "/"
	var found strings.Builder
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if !strings.Contains(stack, own) && !strings.Contains(stack, nested) {
			continue
		}
		if found.Len() > 0 {
			found.WriteString("\n\n")
		}
		stack = strings.TrimSpace(stack)
		if room := limit - found.Len(); len(stack) > room {
			found.WriteString(stack[:max(0, room)] + "\n... cut off")
			break
		}
		found.WriteString(stack)
	}
	if found.Len() == 0 {
		return "no goroutine with this label is left"
	}
	return found.String()
}
