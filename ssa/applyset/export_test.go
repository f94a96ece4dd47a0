package applyset

// Remembered returns of how many parents the Set has a memory.
func Remembered(s *Set) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.memories)
}
