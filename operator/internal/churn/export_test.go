package churn

// Held returns the number of children that the Finder holds, and about their bytes.
func (f *Finder) Held() (children, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.streaks), f.held
}
