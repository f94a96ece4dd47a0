package kube_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/kube"
)

func TestPrintable(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"plain", `a "quoted" text`, `a "quoted" text`},
		{"control characters", "no\r\n\x1b[2Jroot\x00\xff é \u202e", `no\r\n\x1b[2Jroot\x00\xff é \u202e`},
		{"replacement character", "\uFFFD", "\uFFFD"},
		{"at the limit", strings.Repeat("a", 64), strings.Repeat("a", 64)},
		{"longer", strings.Repeat("a", 8<<20), strings.Repeat("a", 64) + "..."},
		{"cut within a rune", strings.Repeat("a", 63) + "é", strings.Repeat("a", 63) + `\xc3...`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := kube.Printable(tc.text, 64); got != tc.want {
				t.Errorf("Printable() = %.100q of %d bytes, want %q", got, len(got), tc.want)
			}
		})
	}
}

// pointerError is an error whose method dereferences it.
type pointerError struct{ text string }

func (e *pointerError) Error() string { return e.text }

// panicking is an error whose method panics.
type panicking struct{}

func (panicking) Error() string { panic("no text") }

// formatted is an error with a text of its own for fmt.
type formatted struct{ error }

func (formatted) Format(f fmt.State, _ rune) { fmt.Fprint(f, "the format") }

func TestPrintableError(t *testing.T) {
	if err := kube.PrintableError(nil, 64); err != nil {
		t.Errorf("PrintableError(nil) = %#v, want nil", err)
	}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"plain", errors.New("a\nb"), `a\nb`},
		{"longer", errors.New(strings.Repeat("a", 8<<20)), strings.Repeat("a", 64) + "..."},
		{"nil pointer", (*pointerError)(nil), "%!v(PANIC=Error method: runtime error: invalid memory address or..."},
		{"panic", panicking{}, "%!v(PANIC=Error method: no text)"},
		{"formatter", formatted{errors.New("the text")}, "the text"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := kube.PrintableError(tc.err, 64)
			if got := err.Error(); got != tc.want {
				t.Errorf("Error() = %.100q of %d bytes, want %q", got, len(got), tc.want)
			}
			if !errors.Is(err, tc.err) {
				t.Error("the error has lost its identity")
			}
		})
	}
}
