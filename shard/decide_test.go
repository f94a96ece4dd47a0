package shard

import "testing"

func TestDecide(t *testing.T) {
	tests := []struct {
		name  string
		facts facts
		want  decision
	}{
		{"it works on its shard", facts{runs: true, same: true, own: true, wanted: true}, keep},
		{"its shard should move", facts{runs: true, same: true, own: true, moves: true}, stopWork},
		{"its shard should move when all have joined", facts{runs: true, same: true, own: true, moves: true, stays: true}, keep},
		{"another has its shard", facts{runs: true}, loseWork},
		{"another has its shard and should, but is dead", facts{runs: true, free: true, moves: true, wanted: true}, loseWork},
		{"it has its shard in a later term", facts{runs: true, own: true, wanted: true, unused: true}, loseWork},
		{"a shard is new", facts{own: true, wanted: true, unused: true}, startWork},
		{"its term was used", facts{own: true, wanted: true}, changeEntry},
		{"its work has ended, and the shard should move", facts{own: true, moves: true}, changeEntry},
		{"a new shard should move", facts{own: true, moves: true, unused: true}, changeEntry},
		{"another's shard", facts{unused: true}, keep},
		{"another's shard should move", facts{moves: true, wanted: true, unused: true}, keep},
		{"a shard has no owner", facts{moves: true, free: true, wanted: true, unused: true}, changeEntry},
		{"a shard has no owner, and another should have it", facts{moves: true, free: true, unused: true}, changeEntry},
		{"a shard has no owner and should have none", facts{free: true, unused: true}, keep},
	}
	for _, test := range tests {
		if got := test.facts.decide(); got != test.want {
			t.Errorf("%s: decide = %d, want %d", test.name, got, test.want)
		}
	}
}

// The rules of the protocol hold for all facts: work begins only where no other runs, and an entry
// changes only without an owner or by its owner, which does not work on it.
func TestDecideRules(t *testing.T) {
	for n := range 1 << 8 {
		bit := func(k int) bool { return n>>k&1 == 1 }
		f := facts{bit(0), bit(1), bit(2), bit(3), bit(4), bit(5), bit(6), bit(7)}
		switch f.decide() {
		case startWork:
			if f.runs && !f.same || !f.own || !f.unused {
				t.Errorf("starts work with %+v", f)
			}
		case changeEntry:
			if f.runs || f.same || !f.own && !f.free {
				t.Errorf("changes the entry with %+v", f)
			}
		case stopWork, loseWork:
			if !f.runs && !f.same {
				t.Errorf("ends no work with %+v", f)
			}
		case keep:
		}
	}
}
