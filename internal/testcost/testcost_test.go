package testcost_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/internal/testcost"
)

// failures counts the errors of a test.
type failures struct {
	testing.TB
	count int
}

func (f *failures) Helper()               {}
func (f *failures) Errorf(string, ...any) { f.count++ }

func TestLinear(t *testing.T) {
	const size = 1 << 20
	var garbage string
	tests := []struct {
		name string
		f    func()
		want int
	}{
		{"cheap", func() {}, 0},
		{"10s", func() { time.Sleep(10 * time.Second) }, 0},
		{"slow", func() { time.Sleep(10*time.Second + 1) }, 1},
		{"linear", func() { garbage = strings.Repeat("x", 9*size) }, 0},
		{"large", func() { garbage = strings.Repeat("x", 11*size) }, 1},
		{"slow and large", func() { garbage = strings.Repeat("x", 11*size); time.Sleep(time.Minute) }, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := &failures{TB: t}
				if testcost.Linear(got, tt.name, size, 2, tt.f); got.count != tt.want {
					t.Errorf("%d errors, want %d", got.count, tt.want)
				}
			})
		})
	}
	_ = garbage
}
