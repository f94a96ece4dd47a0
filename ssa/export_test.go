package ssa

// Len returns how many objects are remembered.
func (m *Memory[T, C]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}
