package consistency

import "time"

// Waits returns how many entries are kept of who waits for what, and whether a timer
// runs.
func (s *Store) Waits() (entries int, timer bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wakes.entries(), s.timer != nil
}

// WaitedParts returns the number of resources, or namespaces of them, for which entries are kept.
func (s *Store) WaitedParts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.wakes.versions)
}

// ShowsAt reports whether LiveRead would be false at a time, in work that began at begun.
func (s *Store) ShowsAt(version string, begun, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	shown, _ := s.showsLocked(version, begun, now)
	return shown
}

// StaleError is the error of a key whose cache is behind.
type StaleError = staleError
