package source

import (
	"fmt"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/operator/internal/served"
)

// A Setting is an informer that selections follow. A controller can watch its resource, too, with
// the same or another informer.
type Setting struct {
	served.Resource
	Informer cache.SharedIndexInformer
}

// Known returns the informer of a source or of a setting that has the cache of the given one, or the given one: the
// operator runs only the first one, and only it may pass events to handlers.
func (s Set) Known(settings []Setting, informer cache.SharedIndexInformer) cache.SharedIndexInformer {
	id := informer.HasSyncedChecker().Done()
	for _, source := range s {
		if source.id == id {
			return source.Informer
		}
	}
	for _, setting := range settings {
		if setting.Informer.HasSyncedChecker().Done() == id {
			return setting.Informer
		}
	}
	return informer
}

// AddSettings gives the informers of settings to the set, except those that a controller watches.
func (s Set) AddSettings(settings []Setting, to *informer.Set) {
	added := map[<-chan struct{}]bool{} // by the informer, which a factory wraps again for each caller
	for _, source := range s {
		added[source.Informer.HasSyncedChecker().Done()] = true
	}
	names := map[string]int{}
	for _, setting := range settings {
		id := setting.Informer.HasSyncedChecker().Done()
		if added[id] {
			continue
		}
		added[id] = true
		name := setting.String() + " (settings)"
		if names[name]++; names[name] > 1 {
			name = fmt.Sprintf("%s (settings %d)", setting.String(), names[name])
		}
		to.Add(name, setting.Informer)
	}
}
