package shard

// OfHash returns the shard of a hash. No object has a chosen hash.
func (r Ranges) OfHash(h uint64) int { return r.of(h) }
