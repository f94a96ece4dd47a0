package queue

import "testing"

// TestGroups tests that a bounded number of groups without keys is kept, and that
// the numbers of the others are used again.
func TestGroups(t *testing.T) {
	s := newGroups()
	for round := range 3 {
		numbers := map[uint32]string{}
		for n := range 3 * maxIdleGroups {
			name := string(rune(round)) + "/" + string(rune(n+1))
			i := s.enter(name)
			if other, taken := numbers[i]; taken || i == 0 {
				t.Fatalf("number %d of group %q is that of %q", i, name, other)
			}
			numbers[i] = name
			if s.enter(name) != i || s.all[i].name != name || s.all[i].keys != 2 {
				t.Fatalf("group %q: got %+v", name, *s.all[i])
			}
			s.leave(i)
		}
		for i := range numbers {
			s.leave(i)
		}
		if len(s.byName.all) != maxIdleGroups || s.idle.n != maxIdleGroups || len(s.all) > 4*maxIdleGroups+1 {
			t.Errorf("round %d: %d groups by name, %d idle, %d numbers", round, len(s.byName.all), s.idle.n, len(s.all))
		}
	}
}
