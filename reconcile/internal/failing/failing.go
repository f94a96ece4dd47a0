// Package failing counts the keys of a loop by the result of their last call.
package failing

// maxKeys bounds the number of keys that are remembered. Further ones are not counted.
const maxKeys = 1 << 16

// Keys has the result of each key whose last call did not succeed, also of keys that run again
// only at an event. An object that is deleted brings an event, so its key does not stay. The zero
// value is empty.
type Keys[K comparable] struct {
	results map[K]string
	counts  map[string]int
}

// Note records the result of a call of key, "" for a success. It returns the results whose counts
// have changed.
func (k *Keys[K]) Note(key K, result string) (changed []string) {
	if len(k.results) == 0 && result == "" { // without a search
		return nil
	}
	was := k.results[key]
	switch {
	case was == result || was == "" && len(k.results) >= maxKeys:
		return nil
	case k.results == nil:
		k.results, k.counts = map[K]string{}, map[string]int{}
	}
	if was != "" {
		delete(k.results, key)
		k.counts[was]--
		changed = append(changed, was)
	}
	if result != "" {
		k.results[key] = result
		k.counts[result]++
		changed = append(changed, result)
	}
	return changed
}

// Count returns the number of keys with a result.
func (k *Keys[K]) Count(result string) int { return k.counts[result] }

// Clear forgets all keys. It returns the results whose counts have changed.
func (k *Keys[K]) Clear() (changed []string) {
	for result, n := range k.counts {
		if n > 0 {
			changed = append(changed, result)
		}
	}
	*k = Keys[K]{}
	return changed
}
