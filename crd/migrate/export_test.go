package migrate

// Lost is for tests.
func Lost(from, to map[string]any, path string) string { return lost(from, to, path) }

// SetPage sets the number of objects of a page.
func (m *Migrator) SetPage(n int64) { m.page = n }
