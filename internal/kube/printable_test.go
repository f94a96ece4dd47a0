package kube_test

import (
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
