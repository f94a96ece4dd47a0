package ssa

// Len returns how many objects are remembered.
func (m *Memory[T, C]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}

// Shapes returns how many fields are remembered, and how long their paths are
// together.
func (m *Memory[T, C]) Shapes() (n, size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for path := range m.shapes {
		size += len(path)
	}
	return len(m.shapes), size
}
