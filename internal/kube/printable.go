package kube

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Printable returns text fit for a line of a log: at most limit bytes of it, with "..." in
// place of the rest, and escapes in place of unprintable characters. It omits what [WithoutValues]
// does. An API server, a proxy or an author of objects may have written it.
func Printable(text string, limit int) string {
	rest := ""
	if len(text) > limit {
		text, rest = text[:limit], "..."
	}
	text = hideValues(text)
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

// PrintableError returns err with a [Printable] text; of nil it returns nil. Its method
// Error does not panic: if err is a nil pointer or its own method panics, the text says so.
// A reconcile function can return such an error, and some loggers would end the process.
func PrintableError(err error, limit int) error {
	if err == nil {
		return nil
	}
	return printable{err, limit}
}

type printable struct {
	error
	limit int
}

func (p printable) Error() string { return Printable(fmt.Sprint(textOnly{p.error}), p.limit) }
func (p printable) Unwrap() error { return p.error }

// textOnly has no method of the error but Error, so that fmt, which recovers a panic, calls
// that one.
type textOnly struct{ error }
