package watcher

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxText bounds the text of a failure, which may come from the server.
const maxText = 2048

// failure is the Err of a Retrying event. Its text is fit for a log: bounded, and
// without control characters.
type failure struct {
	step string // what failed: list, check, watch or bookmark
	err  error
}

func (f *failure) Unwrap() error { return f.err }

func (f *failure) Error() string {
	return "watcher: " + f.step + ": " + printable(strings.TrimPrefix(f.err.Error(), "watcher: "))
}

// printable returns text cut at maxText, with escapes in place of what is not printable.
func printable(text string) string {
	rest := ""
	if len(text) > maxText {
		text, rest = text[:maxText], "..."
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if strconv.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(text[:n])
		} else {
			quoted := strconv.Quote(text[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[n:]
	}
	return b.String() + rest
}
