package status_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/status"
)

func TestDebounce(t *testing.T) {
	const d = 10 * time.Second
	at := func(s int) metav1.Time { return metav1.Unix(1e9+int64(s), 0) }
	c := func(typ string, s metav1.ConditionStatus, since int, generation int64) metav1.Condition {
		return metav1.Condition{Type: typ, Status: s, Reason: "R", ObservedGeneration: generation, LastTransitionTime: at(since)}
	}
	type list = []metav1.Condition
	for _, tt := range []struct {
		name  string
		has   list
		next  metav1.Condition
		d     time.Duration // 0 for 10s
		parts []string      // nil for A and B
		now   int
		keeps bool
		wait  time.Duration
	}{
		{name: "no present one", has: list{c("A", "False", 0, 1)}, next: status.False("Ready", "N", "")},
		{name: "same status", has: list{c("Ready", "False", 0, 1), c("A", "False", 0, 1)}, next: status.False("Ready", "N", "")},
		{name: "at once", has: list{c("Ready", "True", 0, 1), c("A", "False", 5, 1)}, next: status.False("Ready", "N", ""), now: 5, keeps: true, wait: 11 * time.Second},
		{name: "almost", has: list{c("Ready", "True", 0, 1), c("A", "False", 5, 1)}, next: status.False("Ready", "N", ""), now: 15, keeps: true, wait: time.Second},
		{name: "lasted", has: list{c("Ready", "True", 0, 1), c("A", "False", 5, 1)}, next: status.False("Ready", "N", ""), now: 16},
		{name: "False since the first", has: list{c("Ready", "True", 0, 1), c("A", "False", 8, 1), c("B", "False", 5, 1)}, next: status.False("Ready", "N", ""), now: 16},
		{name: "True since the last", has: list{c("Ready", "False", 0, 1), c("A", "True", 8, 1), c("B", "True", 5, 1)}, next: status.True("Ready", "N", ""), now: 16, keeps: true, wait: 3 * time.Second},
		{name: "True since the last, in the other order", has: list{c("Ready", "False", 0, 1), c("A", "True", 5, 1), c("B", "True", 8, 1)}, next: status.True("Ready", "N", ""), now: 16, keeps: true, wait: 3 * time.Second},
		{name: "the True parts do not count for False", has: list{c("Ready", "True", 0, 1), c("A", "True", 0, 1), c("B", "False", 15, 1)}, next: status.False("Ready", "N", ""), now: 16, keeps: true, wait: 10 * time.Second},
		{name: "Unknown", has: list{c("Ready", "True", 0, 1), c("A", "Unknown", 15, 1)}, next: status.Unknown("Ready", "N", ""), now: 16, keeps: true, wait: 10 * time.Second},
		{name: "new generation", has: list{c("Ready", "True", 0, 0), c("A", "False", 15, 1)}, next: status.False("Ready", "N", ""), now: 16},
		{name: "outdated part", has: list{c("Ready", "True", 0, 1), c("A", "False", 15, 0)}, next: status.False("Ready", "N", ""), now: 16},
		{name: "no part accounts for it", has: list{c("Ready", "True", 0, 1), c("A", "True", 15, 1)}, next: status.False("Ready", "N", ""), now: 16},
		{name: "not one of the parts", has: list{c("Ready", "True", 0, 1), c("C", "False", 15, 1)}, next: status.False("Ready", "N", ""), now: 16},
		{name: "no parts", has: list{c("Ready", "True", 0, 1), c("A", "False", 15, 1)}, next: status.False("Ready", "N", ""), parts: []string{}, now: 16},
		{name: "no inertia", has: list{c("Ready", "True", 0, 1), c("A", "False", 15, 1)}, next: status.False("Ready", "N", ""), d: -1, now: 16},
		{name: "for ever", has: list{c("Ready", "True", 0, 1), c("A", "False", 15, 1)}, next: status.False("Ready", "N", ""), d: math.MaxInt64, now: 1e6, keeps: true, wait: 1<<62 - (1e6-16)*time.Second},
		{name: "a clock ahead", has: list{c("Ready", "True", 0, 1), c("A", "False", 3600, 1)}, next: status.False("Ready", "N", ""), now: 16, keeps: true, wait: 11 * time.Second},
	} {
		if tt.d == 0 {
			tt.d = d
		}
		if tt.parts == nil {
			tt.parts = []string{"A", "B"}
		}
		got, wait := status.Debounce(tt.has, 1, tt.next, tt.d, at(tt.now).Time, tt.parts...)
		want := tt.next
		if tt.keeps {
			want = tt.has[0]
		}
		if got != want || wait != tt.wait {
			t.Errorf("%s: got %+v after %v, want %+v after %v", tt.name, got, wait, want, tt.wait)
		}
	}
}

// A part changes as program says, and the controller looks at each change, and when
// Debounce tells it to, and whenever it is restarted. Ready flips only to what has
// lasted for d, and does once that has lasted for d and a second.
func FuzzDebounce(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 255, 128, 64, 0, 0})
	f.Add([]byte("a condition flips and flips"))
	f.Fuzz(func(t *testing.T, program []byte) {
		const d = 5 * time.Second
		if len(program) > 100 {
			program = program[:100]
		}
		synctest.Test(t, func(t *testing.T) {
			statuses := []metav1.ConditionStatus{"True", "False", "Unknown"}
			var conditions []metav1.Condition // all that there is: it could be a new process each time
			var raw metav1.ConditionStatus
			var since time.Time
			look := func() time.Duration {
				t.Helper()
				before := append([]metav1.Condition(nil), conditions...)
				if err := status.Set(&conditions, 1, metav1.Condition{Type: "A", Status: raw, Reason: "R"}); err != nil {
					t.Fatal(err)
				}
				next, wait := status.Debounce(conditions, 1, status.Summary(conditions, 1, "Ready", "A"), d, time.Now(), "A")
				if err := status.Set(&conditions, 1, next); err != nil {
					t.Fatal(err)
				}
				lasted := time.Since(since)
				got := conditions[1].Status
				if len(before) > 0 && got != before[1].Status && (got != raw || lasted < d) {
					t.Fatalf("Ready flips from %s to %s, and A is %s for %v", before[1].Status, got, raw, lasted)
				}
				if got != raw && (lasted > d+time.Second || wait <= 0) {
					t.Fatalf("Ready is %s after A is %s for %v, looking again after %v", got, raw, lasted, wait)
				}
				return wait
			}
			for _, step := range program {
				if s := statuses[step%3]; s != raw {
					raw, since = s, time.Now()
				}
				change := time.NewTimer(time.Duration(step/3) * 97 * time.Millisecond)
				for waiting := true; waiting; {
					var again <-chan time.Time
					if wait := look(); wait > 0 {
						again = time.After(wait)
					}
					select {
					case <-change.C:
						waiting = false
					case <-again:
					}
				}
			}
		})
	})
}

// The limit of Debounce, as documented: what goes round between parts, or between False
// and Unknown, is seen as one blip after the other.
func TestDebounceGoesRound(t *testing.T) {
	const d = 10 * time.Second
	part := func(typ string, s metav1.ConditionStatus, since time.Time) metav1.Condition {
		return metav1.Condition{Type: typ, Status: s, Reason: "R", ObservedGeneration: 1, LastTransitionTime: metav1.Time{Time: since}}
	}
	for _, tt := range []struct {
		name string
		a, b [2]metav1.ConditionStatus // in even and in odd rounds
	}{
		{name: "between False and Unknown", a: [2]metav1.ConditionStatus{"False", "Unknown"}, b: [2]metav1.ConditionStatus{"True", "True"}},
		{name: "between parts", a: [2]metav1.ConditionStatus{"False", "True"}, b: [2]metav1.ConditionStatus{"True", "False"}},
	} {
		now := time.Unix(1e9, 0)
		list := []metav1.Condition{part("Ready", "True", now), part("A", "True", now), part("B", "True", now)}
		look := func() string {
			next, _ := status.Debounce(list, 1, status.Summary(list, 1, "Ready", "A", "B"), d, now, "A", "B")
			return string(next.Status)
		}
		for i := range 20 {
			now = now.Add(d / 2)
			list[1], list[2] = part("A", tt.a[i%2], now), part("B", tt.b[i%2], now)
			if got := look(); got != "True" {
				t.Fatalf("%s: Ready is %s in round %d", tt.name, got, i)
			}
		}
		if now = now.Add(d + time.Second); look() == "True" {
			t.Errorf("%s: Ready is True after it came to rest", tt.name)
		}
	}
}

func ExampleDebounce() {
	var conditions []metav1.Condition
	// What is found out is stored at once. Ready, which others act on, waits.
	reconcile := func(deployed metav1.Condition, now time.Time) time.Duration {
		if err := status.Set(&conditions, 1, deployed); err != nil {
			fmt.Println(err)
		}
		next, wait := status.Debounce(conditions, 1, status.Summary(conditions, 1, "Ready", "Deployed"), 30*time.Second, now, "Deployed")
		if err := status.Set(&conditions, 1, next); err != nil {
			fmt.Println(err)
		}
		return wait // when to reconcile again
	}
	now := time.Now()
	reconcile(status.True("Deployed", "Available", ""), now)
	wait := reconcile(status.False("Deployed", "PodGone", ""), now)
	fmt.Println(conditions[0].Status, conditions[1].Status, wait > 0)
	reconcile(status.False("Deployed", "PodGone", ""), now.Add(32*time.Second))
	fmt.Println(conditions[0].Status, conditions[1].Status)
	// Output:
	// False True true
	// False False
}
