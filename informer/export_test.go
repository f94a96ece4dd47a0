package informer

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// Mutated reports whether an object differs from its copy, and where.
func Mutated(obj, saved runtime.Object) (path string, changed bool) { return mutated(obj, saved) }

// Samples are the samples of an informer.
type Samples struct{ samples }

func (s *Samples) Compare(store cache.Store) []Mutation { return s.compare("things", store) }
func (s *Samples) Refresh(store cache.Store)            { s.refresh(store) }

// Held returns the number of the samples and the bytes that they account for.
func (s *Samples) Held() (n int, bytes int64) { return len(s.all), s.bytes }

// Period is the time between two comparisons.
const Period = mutationPeriod
