package reconcile

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// maxText bounds the text of an error in a line of log.
const maxText = 16 << 10

// printable is an error whose text is safe in a line of log. Texts come from services
// and from authors of objects: a newline would begin a line of their own, an escape
// sequence would rewrite a terminal.
type printable struct{ error }

func (p printable) Error() string { return escape(p.error.Error()) }
func (p printable) Unwrap() error { return p.error }

// escape returns s with unprintable characters as in a Go string, cut at maxText.
func escape(s string) string {
	cut := len(s) - maxText
	if cut > 0 {
		s = s[:maxText]
	}
	if strings.ContainsFunc(s, unprintable) {
		var b strings.Builder
		for _, r := range s {
			if unprintable(r) {
				quoted := strconv.QuoteRune(r)
				b.WriteString(quoted[1 : len(quoted)-1])
			} else {
				b.WriteRune(r)
			}
		}
		s = b.String()
	}
	if cut > 0 {
		s += fmt.Sprintf(" (and %d bytes)", cut)
	}
	return s
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
