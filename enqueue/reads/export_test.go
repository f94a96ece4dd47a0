package reads

// Narrow takes bits from each hash, so that many are equal. Call it before From.
func (t *Tracker[K]) Narrow(bits uint) { t.graph.narrow = bits }

// Buckets returns the number of buckets of selectors.
func (t *Tracker[K]) Buckets() int { return len(t.lists.buckets) }

// Forbidden returns the number of namespaces in which selectors stand in the buckets of forbidden labels.
func (t *Tracker[K]) Forbidden() int { return len(t.lists.forbids) }
