package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	maxDefinition  = 3 << 20 // bytes; etcd stores less
	installTimeout = 2 * time.Minute
)

// Require returns an error that is a [crd.ErrNotServed] if the CustomResourceDefinition of the
// resource is absent, not established, being deleted, or does not serve the version. The error names
// the served versions. Call it before the controllers start. It needs the right to get the
// definition.
func Require(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource) error {
	if client == nil {
		return errors.New("migrate: require: client is nil: pass a dynamic client")
	}
	if resource.Group == "" || resource.Version == "" || resource.Resource == "" {
		return fmt.Errorf("migrate: require: the resource is %q: set its group, version and plural name", resource)
	}
	name := resource.GroupResource().String()
	obj, err := client.Resource(definitions()).Get(ctx, name, metav1.GetOptions{})
	switch {
	case kube.IsGone(err, name):
		return notServed("CustomResourceDefinition %s does not exist: install it", name)
	case err != nil:
		return fmt.Errorf("migrate: read CustomResourceDefinition %s: %w", name, err)
	}
	return read(obj).require(resource.Version)
}

// A notServedError is a crd.ErrNotServed with the text of this package.
type notServedError struct{ text string }

func notServed(format string, args ...any) error {
	return &notServedError{"migrate: " + fmt.Sprintf(format, args...)}
}

func (e *notServedError) Error() string        { return e.text }
func (e *notServedError) Is(target error) bool { return target == crd.ErrNotServed }

// require returns an error unless the definition serves the versions.
func (d *definition) require(versions ...string) error {
	for _, version := range versions {
		if !d.serves(version) {
			return notServed("CustomResourceDefinition %s does not serve the version %q, but %q: install the definition of this release", d.GetName(), version, d.served())
		}
	}
	if d.GetDeletionTimestamp() != nil {
		return notServed("CustomResourceDefinition %s is being deleted: install it again after its end", d.GetName())
	}
	if status, _ := d.condition("Established"); status != "True" {
		_, why := d.condition("NamesAccepted")
		return notServed("CustomResourceDefinition %s is not established: %s", d.GetName(), cmp.Or(kube.Message(why), "the API server has not accepted it yet"))
	}
	return nil
}

// Install applies one CustomResourceDefinition in YAML or JSON as the field manager, and waits until
// the API server serves each version of it, for 2 minutes at most. A field that another manager has set
// to another value is a conflict, and the error wraps that of the API server. Call it only if the
// operator is meant to own its definition.
//
// If Helm or OLM manages the live definition, Install does not write it. If that definition does not serve each version
// of the given one, the error wraps [crd.ErrNotServed]. If the live definition is newer, Install
// returns an error and does not write it. It is newer if it has a version after all versions of the
// given one, or a field that the same version of the given one lacks.
//
// Install needs the rights to get, list, watch, create and patch the definition, and to list the
// resource.
func Install(ctx context.Context, client dynamic.Interface, fieldManager string, data []byte) error {
	if client == nil {
		return errors.New("migrate: install: client is nil: pass a dynamic client")
	}
	if err := apply.CheckManager(fieldManager); err != nil {
		return fmt.Errorf("migrate: install: %w", err)
	}
	given, err := parse(data)
	if err != nil {
		return fmt.Errorf("migrate: install: %w", err)
	}
	for range maxConflict {
		err = given.install(ctx, client, fieldManager)
		if !apierrors.IsConflict(err) || apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) {
			break
		}
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, installTimeout, fmt.Errorf("the API server has not served it within %v", installTimeout))
	defer cancel()
	return awaitServed(ctx, client, given)
}

// install applies the given definition d, unless another tool or release manages the live one.
func (d *definition) install(ctx context.Context, client dynamic.Interface, fieldManager string) error {
	name := d.GetName()
	config := d.DeepCopy()
	obj, err := client.Resource(definitions()).Get(ctx, name, metav1.GetOptions{})
	switch {
	case kube.IsGone(err, name):
	case err != nil:
		return fmt.Errorf("migrate: read CustomResourceDefinition %s: %w", name, err)
	default:
		live := read(obj)
		if owner := foreign(live); owner != "" {
			if err := live.require(d.served()...); err != nil {
				return fmt.Errorf("%w: %s manages it: upgrade it there", err, owner)
			}
			return nil
		}
		if err := live.notAfter(d); err != nil {
			return fmt.Errorf("migrate: install CustomResourceDefinition %s: %w", name, err)
		}
		config.SetUID(live.GetUID())
		config.SetResourceVersion(live.GetResourceVersion())
	}
	if _, err := client.Resource(definitions()).Apply(ctx, name, config, metav1.ApplyOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("migrate: install CustomResourceDefinition %s: %w", name, err)
	}
	return nil
}

// separator is before or after a YAML document. yaml.Unmarshal reads the first document alone.
var separator = regexp.MustCompile(`(?m)^(?:---|\.\.\.)(?:[ \t\r]|$)`)

// directives is before a separator, and belongs to the document after it, such as "%YAML 1.1".
var directives = regexp.MustCompile(`^(?:[ \t\r]*(?:#.*)?\n)*%`)

// parse reads a definition.
func parse(data []byte) (*definition, error) {
	if len(data) > maxDefinition {
		return nil, fmt.Errorf("the definition has %d bytes, and %d are allowed: shorten its descriptions", len(data), maxDefinition)
	}
	obj := &unstructured.Unstructured{}
	before := ""
	documents := separator.Split(string(data), -1)
	for i, document := range documents {
		if directives.MatchString(document) && i < len(documents)-1 {
			before = document + "--- "
			continue
		}
		var content map[string]any
		if err := yaml.Unmarshal([]byte(before+document), &content); err != nil {
			return nil, fmt.Errorf("the definition is not valid YAML: %w", err)
		}
		before = ""
		switch {
		case content == nil: // comments
		case obj.Object != nil:
			return nil, errors.New("the definition is followed by another YAML document: pass one CustomResourceDefinition")
		default:
			obj.Object = content
		}
	}
	d := read(obj)
	switch {
	case obj.GetKind() != "CustomResourceDefinition" || obj.GetAPIVersion() != definitions().GroupVersion().String():
		return nil, fmt.Errorf("the definition has apiVersion %q and kind %q: pass one CustomResourceDefinition of %s", obj.GetAPIVersion(), obj.GetKind(), definitions().GroupVersion())
	case obj.GetName() == "" || obj.GetName() != d.resource.String():
		return nil, fmt.Errorf("the definition has metadata.name %q: use %q, its plural name and group", obj.GetName(), d.resource)
	case len(d.served()) == 0:
		return nil, errors.New("the definition serves no version: set served in spec.versions")
	}
	// controller-gen writes these, and an apply would own them.
	unstructured.RemoveNestedField(obj.Object, "status")
	unstructured.RemoveNestedField(obj.Object, "metadata", "creationTimestamp")
	return d, nil
}

// foreign returns the name of the tool that manages the definition, or "".
func foreign(d *definition) string {
	if d.GetLabels()["app.kubernetes.io/managed-by"] == "Helm" {
		return "Helm"
	}
	if d.GetLabels()["olm.managed"] == "true" {
		return "OLM"
	}
	for key := range d.GetAnnotations() {
		if strings.HasPrefix(key, "meta.helm.sh/") {
			return "Helm"
		}
	}
	for _, keys := range []map[string]string{d.GetLabels(), d.GetAnnotations()} {
		for key := range maps.Keys(keys) {
			prefix, _, _ := strings.Cut(key, "/")
			if prefix == "operators.coreos.com" || strings.HasSuffix(prefix, ".operatorframework.io") {
				return "OLM"
			}
		}
	}
	return ""
}

// notAfter returns an error if the live definition d is newer than the given one.
func (d *definition) notAfter(given *definition) error {
	if d.GetDeletionTimestamp() != nil {
		return errors.New("it is being deleted: install it again after its end")
	}
	names := make([]string, len(given.versions))
	for i, v := range given.versions {
		names[i] = v.name
	}
	newest := slices.MaxFunc(names, apiversion.CompareKubeAwareVersionStrings)
	for _, v := range d.versions {
		if apiversion.CompareKubeAwareVersionStrings(v.name, newest) > 0 {
			return fmt.Errorf("the live definition has the version %s, which is newer than %s: run the release that installed it", v.name, newest)
		}
		same, ok := given.version(v.name)
		if !ok {
			continue
		}
		if field := lost(v.schema, same.schema, ""); field != "" {
			return fmt.Errorf("the live definition has the field %s in the version %s, which the given one lacks: run the release that installed it", field, v.name)
		}
	}
	return nil
}

// namesTime is the time after which a condition of the names is about the applied ones. Before, it can be
// about those of the former definition.
const namesTime = 5 * time.Second

// awaitServed waits until the definition is established, and its versions can be listed.
func awaitServed(ctx context.Context, client dynamic.Interface, given *definition) error {
	ctx, cancel := context.WithCancel(ctx)
	w, err := watch(ctx, client, given.GetName())
	if err != nil {
		cancel()
		return err
	}
	defer w.running.Wait()
	defer cancel()
	judged, late := time.NewTimer(namesTime), false
	defer judged.Stop()
	for established := false; !established; {
		select {
		case <-ctx.Done():
			return interrupted(ctx, given)
		case <-judged.C:
			late = true
		case <-w.changed:
		}
		w.mu.Lock()
		latest := w.latest
		w.mu.Unlock()
		if latest == nil {
			continue
		}
		established = latest.require(given.served()...) == nil
		if status, why := latest.condition("NamesAccepted"); late && status == "False" {
			return fmt.Errorf("migrate: install CustomResourceDefinition %s: the API server refuses its names: %s", given.GetName(), kube.Message(why))
		}
	}
	for _, version := range given.served() {
		// No event shows that the API server serves an established definition.
		for delay := 20 * time.Millisecond; ; delay = min(2*delay, time.Second) {
			_, err := client.Resource(given.resource.WithVersion(version)).List(ctx, metav1.ListOptions{Limit: 1})
			if err == nil {
				break
			}
			if !apierrors.IsNotFound(err) && !isTransient(err) {
				return fmt.Errorf("migrate: install CustomResourceDefinition %s: list its objects in %s: %w", given.GetName(), version, err)
			}
			timer := time.NewTimer(delay)
			select {
			case <-ctx.Done():
				timer.Stop()
				return interrupted(ctx, given)
			case <-timer.C:
			}
		}
	}
	return nil
}

func interrupted(ctx context.Context, given *definition) error {
	return fmt.Errorf("migrate: install CustomResourceDefinition %s: %w", given.GetName(), context.Cause(ctx))
}
