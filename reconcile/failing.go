package reconcile

// failingLocked reports the numbers of failing keys that a call of key changes.
func (r *run[K]) failingLocked(key K, cl class) {
	if r.metrics == nil || cl == cancelled { // a call that was cancelled shows nothing
		return
	}
	result := string(cl)
	if cl == success || cl == requeue {
		result = ""
	}
	for _, changed := range r.failing.Note(key, result) {
		r.metrics.ReconcileFailing(r.Name, changed, r.failing.Count(changed))
	}
}

// unfailLocked reports that no key fails, because Run ends.
func (r *run[K]) unfailLocked() {
	for _, changed := range r.failing.Clear() {
		r.metrics.ReconcileFailing(r.Name, changed, 0)
	}
}
