package tracing

// Kept returns how many keys and traces c remembers.
func Kept[K comparable](c *Controller[K]) (keys, traces int) {
	c.events.mu.Lock()
	defer c.events.mu.Unlock()
	return len(c.events.keys), len(c.events.traces)
}
