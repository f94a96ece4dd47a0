package informer

import (
	"context"
	"fmt"
	"time"

	"github.com/controllerkit/controllerkit/informer/internal/pause"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	mutationPeriod  = 10 * time.Second // between two comparisons
	mutationRefresh = 5 * time.Minute  // after which a sample makes room without an event
)

// Mutation is a change of an object in the cache by the program itself. Objects in a cache are
// shared, so a change of one is a data race, and other readers take it for the state of the
// API server.
type Mutation struct {
	Name string // of the informer, as given to Add
	Key  string // namespace/name of the object
	Path string // of the first changed field, such as .metadata.labels["app"]; "" for the whole object
}

// String returns a sentence about the mutation. It contains no value of a field.
func (m Mutation) String() string {
	return fmt.Sprintf("informer: %q: the program changed %s in the cache at %q: make a DeepCopy of an object before a change", m.Name, m.Key, m.Path)
}

// findMutations compares the samples until ctx is done, and a last time after that.
func (s *Set) findMutations(ctx context.Context, members []*member) {
	for refreshed, runs := time.Now(), true; runs; {
		runs = pause.For(ctx, mutationPeriod)
		refresh := time.Since(refreshed) >= mutationRefresh
		if refresh {
			refreshed = time.Now()
		}
		for _, m := range members {
			store := m.informer.GetStore()
			found := m.samples.Compare(store)
			for _, change := range found {
				s.Mutated(Mutation{m.name, change.Key, change.Path})
			}
			if !kube.IsNil(s.Metrics) {
				s.Metrics.InformerMutated(m.name, len(found))
			}
			if refresh {
				m.samples.Refresh(store)
			}
		}
	}
}

// LastMutations returns, by the name of the informer, the last mutation that Mutated was called
// with.
func (s *Set) LastMutations() map[string]Mutation {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := map[string]Mutation{}
	for _, m := range s.members {
		if change, found := m.samples.Last(); found {
			last[m.name] = Mutation{m.name, change.Key, change.Path}
		}
	}
	return last
}
