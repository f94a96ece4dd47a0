package leader

import (
	"testing"
	"time"
)

func TestWaitUntil(t *testing.T) {
	now := time.Now()
	in := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	var unknown time.Time
	tests := []struct {
		name                string
		may                 bool
		at                  time.Time
		nextRead, nextClaim time.Time
		want                time.Time
	}{
		{name: "free, no claim has failed", may: true, nextRead: in(5)},
		{name: "free, the time of the claim has come", may: true, nextRead: in(5), nextClaim: now},
		{name: "free, the claim is later", may: true, nextRead: in(5), nextClaim: in(3), want: in(3)},
		{name: "free, the read is earlier", may: true, nextRead: in(2), nextClaim: in(3), want: in(2)},
		{name: "held, free later than the read", at: in(9), nextRead: in(2), want: in(2)},
		{name: "held, free earlier than the read", at: in(1), nextRead: in(2), want: in(1)},
		{name: "unknown", at: unknown, nextRead: in(2), want: in(2)},
		{name: "held, a claim may be made", at: in(9), nextRead: in(2), nextClaim: in(1), want: in(2)},
	}
	for _, test := range tests {
		m := &campaign{nextRead: test.nextRead, nextClaim: test.nextClaim}
		if got := m.waitUntil(test.may, test.at, now); !got.Equal(test.want) {
			t.Errorf("%s: waitUntil = %v, want %v", test.name, got.Sub(now), test.want.Sub(now))
		}
	}
}
