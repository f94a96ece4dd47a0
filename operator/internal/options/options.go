// Package options checks the options of an operator.
package options

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/controllerkit/controllerkit/enqueue/pause"
)

// Options are those of the same names of operator.Options.
type Options struct {
	Name, LeaseNamespace, AnnotationPrefix string
	GracePeriod, StartTimeout              time.Duration
}

// Check returns an error that names the option that is not valid.
func (o Options) Check() error {
	switch {
	case o.Name == "":
		return errors.New("operator: Options.Name is empty: name the operator, e.g. website-controller")
	case len(validation.IsQualifiedName(o.Name)) > 0:
		return fmt.Errorf("operator: Options.Name is %q, which an Event cannot have as its controller: use a qualified name, e.g. website-controller", o.Name)
	case o.LeaseNamespace != "" && len(validation.IsDNS1123Label(o.LeaseNamespace)) > 0:
		return fmt.Errorf("operator: Options.LeaseNamespace is %q: set it to the name of a namespace, or to \"\" for no election", o.LeaseNamespace)
	case o.LeaseNamespace != "" && len(validation.IsDNS1123Subdomain(o.Name)) > 0:
		return fmt.Errorf("operator: Options.Name is %q, which a Lease cannot have as its name: use a DNS subdomain, e.g. website-controller", o.Name)
	case pause.Annotations{Prefix: o.AnnotationPrefix}.Check() != nil:
		return fmt.Errorf("operator: Options.AnnotationPrefix is %q: use a DNS subdomain, e.g. example.com, or \"\" for %s", o.AnnotationPrefix, pause.Domain)
	case o.GracePeriod < 0 || o.StartTimeout < 0:
		return errors.New("operator: Options.GracePeriod and Options.StartTimeout must not be negative; 0 means the default")
	case o.GracePeriod > 0 && o.GracePeriod < time.Second:
		return fmt.Errorf("operator: Options.GracePeriod %v is too short to stop in: use at least 1s", o.GracePeriod)
	}
	return nil
}
