package objects

import (
	"fmt"
	"slices"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// HasValue reports whether an object has a value in an index, whose function can be nil. It returns an error if the
// function panics.
func HasValue[T controllerkit.Object](values func(T) []string, obj T, value string) (has bool, err error) {
	if values == nil {
		return false, nil
	}
	defer func() {
		if recover() != nil { // as the index of a cache does
			err = fmt.Errorf("operator: the function of the index panics for the applied %T %s", obj, kube.Printable(kube.NameOf(obj), 600))
		}
	}()
	return slices.Contains(values(obj), value), nil
}
