package consistency

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

// StaleError is the error of a key whose cache is behind.
type StaleError = staleError
