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

// burn takes CPU time.
func burn(d time.Duration) {
	for begin := testcost.CPU(); testcost.CPU()-begin < d; {
	}
}

func TestCheap(t *testing.T) {
	var garbage string
	for _, tt := range []struct {
		name      string
		encode, f func()
		want      int
	}{
		{"cheap", func() {}, func() {}, 0},
		{"slow", func() {}, func() { burn(60 * time.Millisecond) }, map[bool]int{false: 1}[testcost.RaceEnabled]},
		{"as slow as the encoding of a large object", func() { burn(10 * time.Millisecond) }, func() { burn(60 * time.Millisecond) }, 0},
		{"31 MiB", func() { burn(100 * time.Millisecond) }, func() { garbage = strings.Repeat("x", 31<<20) }, 0},
		{"33 MiB", func() {}, func() { garbage = strings.Repeat("x", 33<<20) }, map[bool]int{false: 1}[testcost.RaceEnabled]},
		{"129 MiB", func() {}, func() { garbage = strings.Repeat("x", 129<<20) }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := &failures{TB: t}
			if testcost.Cheap(got, tt.name, tt.encode, tt.f); got.count != tt.want {
				t.Errorf("%d errors, want %d", got.count, tt.want)
			}
		})
	}
	_ = garbage
}

func TestLinear(t *testing.T) {
	const size = 1 << 20
	var garbage string
	for _, tt := range []struct {
		name string
		size int
		f    func()
		want int
	}{
		{"cheap", size, func() {}, 0},
		{"asleep", size, func() { time.Sleep(time.Minute) }, 0},
		{"slow", 1 << 10, func() { burn(100 * time.Millisecond) }, 1},
		{"as slow as its input is large", 16 * size, func() { burn(100 * time.Millisecond) }, 0},
		{"linear", size, func() { garbage = strings.Repeat("x", 9*size) }, 0},
		{"large", size, func() { garbage = strings.Repeat("x", 11*size) }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := &failures{TB: t}
				if testcost.Linear(got, tt.name, tt.size, 2, tt.f); got.count != tt.want {
					t.Errorf("%d errors, want %d", got.count, tt.want)
				}
			})
		})
	}
	_ = garbage
}
