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
