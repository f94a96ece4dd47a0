package kube

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Printable returns text fit for a line of a log: at most limit bytes of it, with "..." in
// place of the rest, and escapes in place of unprintable characters. An API server, a
// proxy or an author of objects may have written it.
func Printable(text string, limit int) string {
	rest := ""
	if len(text) > limit {
		text, rest = text[:limit], "..."
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if strconv.IsPrint(r) && r != utf8.RuneError {
			b.WriteString(text[:n])
		} else {
			quoted := strconv.Quote(text[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[n:]
	}
	return b.String() + rest
}

// PrintableError returns err with a [Printable] text.
func PrintableError(err error, limit int) error { return printable{err, limit} }

type printable struct {
	error
	limit int
}

func (p printable) Error() string { return Printable(p.error.Error(), p.limit) }
func (p printable) Unwrap() error { return p.error }
