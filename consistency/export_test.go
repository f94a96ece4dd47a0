package consistency

// Waits returns how many entries are kept of who waits for what, and whether a timer
// runs.
func (s *Store) Waits() (entries int, timer bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wakes.entries(), s.timer != nil
}

// StaleError is the error of a key whose cache is behind.
type StaleError = staleError
