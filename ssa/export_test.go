package ssa

// Len returns the number of objects that the Memory holds.
func (m *Memory[T, C]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}
