package migrate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/managedfields"
)

const (
	maxNamed    = 10 // failed objects
	maxWriters  = 20 // managers of a version
	maxConflict = 20 // writes of others during the migration of one object
	maxTries    = 3  // of a patch that removed managedFields without a visible reason
)

// A pass migrates the objects of one generation of a definition.
type pass struct {
	m           *Migrator
	definition  *definition // the latest one that the pass has read
	record      record
	storage     version
	established bool      // the definition was, at the begin
	stored      []string  // status.storedVersions at the begin
	rewrite     bool      // stored has other versions
	compare     []version // stored versions whose fields the storage version can lack
	next        time.Time // of the next write

	last      string // the key of the last object that was read
	unordered bool   // the API server does not list in the order of keys
	handled   int
	replaced  int
	failed    BlockedError
	writers   map[string]map[string]bool // by version
}

// begin reads the definition, and returns the pass that its spec needs.
func (m *Migrator) begin(ctx context.Context) (*pass, error) {
	d, err := m.get(ctx)
	if err != nil {
		return nil, err
	}
	p := &pass{m: m, definition: d, record: d.record(), storage: d.storage(), established: d.isEstablished(), stored: d.stored, writers: map[string]map[string]bool{}}
	fail := func(format string, args ...any) (*pass, error) {
		return p, fmt.Errorf("migrate: CustomResourceDefinition %s: %s", m.Definition, fmt.Sprintf(format, args...))
	}
	switch {
	case d.GetDeletionTimestamp() != nil:
		return fail("it is being deleted: create it again to migrate its objects")
	case !p.established:
		return fail("it is not established: wait until the API server accepts it, and see its conditions")
	case !p.storage.served:
		return fail("the storage version %q is not served: serve it", p.storage.name)
	}
	p.rewrite = !slices.Equal(d.stored, []string{p.storage.name})
	if p.rewrite && (p.record.Done || !p.record.Rewrite) { // a person has edited storedVersions
		p.record.After, p.record.Done = "", false
	}
	p.record.Rewrite = p.rewrite
	for _, v := range d.versions {
		if v.storage || !slices.Contains(d.stored, v.name) || !d.none || d.preserve {
			continue // an object that is stored in the storage version has no other fields
		}
		switch field := lost(v.schema, p.storage.schema, ""); {
		case field == "":
		case v.served:
			p.compare = append(p.compare, v)
		default:
			return fail("the schema of %[1]s has the field %[2]s, which that of the storage version %[3]s lacks, so objects stored in %[1]s can lose it: add the field to %[3]s, or remove it from %[1]s, or serve %[1]s so that each object can be checked",
				v.name, field, p.storage.name)
		}
	}
	return p, nil
}

// isOf reports whether the pass is of the spec of d.
func (p *pass) isOf(d *definition) bool {
	return d.GetUID() == p.record.UID && d.GetGeneration() == p.record.Generation
}

// isBefore reports whether d has a later spec than the pass. It can be one of a late watch.
func (p *pass) isBefore(d *definition) bool {
	if d.GetUID() != p.record.UID {
		made, before := d.GetCreationTimestamp(), p.definition.GetCreationTimestamp()
		return before.Before(&made)
	}
	return d.GetGeneration() > p.record.Generation
}

func (p *pass) result() Report {
	return Report{Version: p.storage.name, Objects: p.handled, Replaced: p.replaced, Writers: p.namedWriters()}
}

func (p *pass) namedWriters() map[string][]string {
	named := map[string][]string{}
	for version, managers := range p.writers {
		named[version] = slices.Sorted(maps.Keys(managers))
	}
	return named
}

// fail sets the condition after a failure, which the caller returns. An error of the condition is
// not returned in place of it.
func (p *pass) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		_ = p.setStatus(ctx, false, metav1.ConditionFalse, "Blocked", kube.Message(err.Error()))
	}
	p.progress(false)
}

func (p *pass) progress(done bool) {
	if p.m.Metrics != nil {
		p.m.Metrics.MigrationProgress(p.m.Definition, p.handled, p.failed.Objects, done)
	}
}

// run makes the pass.
func (p *pass) run(ctx context.Context) error {
	p.progress(p.record.Done) // also before a first page that cannot be listed
	if p.record.Done {
		return nil
	}
	if err := p.settle(ctx); err != nil {
		return err
	}
	if err := p.setStatus(ctx, false, metav1.ConditionFalse, "Running", p.running()); err != nil {
		return err
	}
	if err := p.pages(ctx); err != nil {
		return err
	}
	if p.failed.Objects > 0 {
		return &p.failed
	}
	if err := p.setStatus(ctx, true, metav1.ConditionTrue, "Migrated", p.message()); err != nil {
		return err
	}
	p.record.Done = true
	if err := p.save(ctx); err != nil {
		return err
	}
	p.progress(true)
	return nil
}

// message says what is left to do before other versions can be removed.
func (p *pass) message() string {
	text := "All objects are stored in " + p.storage.name + "."
	named := p.namedWriters()
	for _, version := range slices.Sorted(maps.Keys(named)) {
		text += fmt.Sprintf(" Managers own fields in the served version %s: %q.", version, named[version])
	}
	return kube.Message(text)
}

// settle waits until every API server uses the spec of the definition.
func (p *pass) settle(ctx context.Context) error {
	if p.record.Settled {
		return nil
	}
	wait := orDefault(p.m.Settle, defaultSettle)
	if err := p.setStatus(ctx, false, metav1.ConditionFalse, "Settling", fmt.Sprintf("The migration begins when the spec has not changed for %v.", wait)); err != nil {
		return err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	var err error
	if p.definition, err = p.m.get(ctx); err != nil {
		return err
	}
	p.record.Settled = true
	return p.save(ctx)
}

// listed returns the versions to list in, in their order. A list in the storage version fails if
// the conversion webhook rejects one of the objects, and does not name it. A list in a stored
// version needs no conversion of the objects in it.
func (p *pass) listed() []string {
	versions := []string{p.storage.name}
	for _, version := range p.stored {
		if version != p.storage.name && p.definition.serves(version) {
			versions = append(versions, version)
		}
	}
	return versions
}

// pages migrates all objects.
func (p *pass) pages(ctx context.Context) error {
	versions := p.listed()
	var rejected error // of the list in the storage version
	seen := ""         // the last object that this pass has handled
	most := orDefault(p.m.page, defaultPage)
	limit := min(most, firstPage)
	for token := ""; ; {
		var page *unstructured.UnstructuredList
		err := p.retry(ctx, "list", p.definition.resource.String(), func(ctx context.Context) (err error) {
			page, err = p.m.Client.Resource(p.definition.resource.WithVersion(versions[0])).List(ctx, metav1.ListOptions{Limit: limit, Continue: token})
			return err
		})
		if isRejection(err) && rejected == nil {
			rejected = err
		}
		switch {
		case isRejection(err) && len(versions) > 1:
			versions = versions[1:] // for the rest of the pass
			continue
		case isRejection(err):
			return fmt.Errorf("migrate: list %s: %w", p.definition.resource, rejected)
		case apierrors.IsResourceExpired(err) && token != "":
			token, p.last = "", "" // the objects up to seen are skipped
			continue
		case err != nil:
			return fmt.Errorf("migrate: list %s: %w", p.definition.resource, err)
		}
		limit = most
		for i := range page.Items {
			obj := &page.Items[i]
			limit = max(1, min(limit, maxPage/size(obj.Object)))
			key := keyOf(obj)
			if key <= p.last {
				p.unordered, p.record.After = true, ""
			}
			p.last = key
			if !p.unordered && key <= seen {
				continue
			}
			p.handled++
			p.note(obj)
			if p.unordered || key > p.record.After {
				if err := p.object(ctx, obj); err != nil {
					return err
				}
			}
			seen = max(seen, key)
			if p.failed.Objects == 0 && !p.unordered {
				p.record.After = max(p.record.After, key)
			}
		}
		p.progress(false)
		if token = page.GetContinue(); token == "" {
			return nil
		}
		if err := p.save(ctx); err != nil {
			return err
		}
	}
}

// size returns approximately the bytes of memory of a value.
func size(v any) (n int64) {
	switch v := v.(type) {
	case string:
		return 16 + int64(len(v))
	case map[string]any:
		n = 64
		for key, value := range v {
			n += 32 + int64(len(key)) + size(value)
		}
		return n
	case []any:
		n = 40
		for _, value := range v {
			n += size(value)
		}
		return n
	}
	return 24
}

// keyOf returns the key of an object. The API server lists in the order of keys.
func keyOf(obj metav1.Object) string { return obj.GetNamespace() + "/" + obj.GetName() }

// note records the managers that own fields in other served versions.
func (p *pass) note(obj *unstructured.Unstructured) {
	for _, e := range obj.GetManagedFields() {
		version, ok := strings.CutPrefix(e.APIVersion, p.definition.resource.Group+"/")
		if !ok || version == p.storage.name || !p.definition.serves(version) {
			continue
		}
		if p.writers[version] == nil {
			p.writers[version] = map[string]bool{}
		}
		if managers := p.writers[version]; len(managers) < maxWriters {
			managers[kube.Printable(e.Manager, 128)] = true
		}
	}
}

// object migrates an object. If it cannot be migrated, object records that. It returns other
// errors.
func (p *pass) object(ctx context.Context, obj *unstructured.Unstructured) error {
	key := strings.TrimPrefix(keyOf(obj), "/")
	err := p.write(ctx, key, obj)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errChanged):
		return err
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return fmt.Errorf("migrate: %s: %w", key, err)
	case ctx.Err() != nil:
		return fmt.Errorf("migrate: %s: %w", key, ctx.Err())
	}
	p.failed.Objects++
	if len(p.failed.Errs) < maxNamed {
		p.failed.Errs = append(p.failed.Errs, kube.PrintableError(fmt.Errorf("%s: %w", key, err), 2<<10))
	}
	return nil
}

// write sends the patches that an object needs.
func (p *pass) write(ctx context.Context, key string, obj *unstructured.Unstructured) error {
	client := p.m.Client.Resource(p.definition.resource.WithVersion(p.storage.name)).Namespace(obj.GetNamespace())
	rewrite := p.rewrite
	if obj.GroupVersionKind().Version != p.storage.name { // see listed
		var exists bool
		var err error
		if obj, exists, err = p.get(ctx, key, client, obj.GetName()); !exists {
			return err
		}
	}
	for range maxConflict {
		var entries []metav1.ManagedFieldsEntry
		replaces := p.hasStale(obj)
		if replaces {
			var err error
			if entries, err = managedfields.Replace(obj.GetManagedFields(), p.isStale, obj.GetAPIVersion(), obj.UnstructuredContent(), nil); err != nil {
				return err
			}
		}
		if !replaces && !rewrite {
			return nil
		}
		err := p.keepsFields(ctx, key, obj)
		if err == nil {
			err = p.pace(ctx)
		}
		switch {
		case err != nil:
		case replaces:
			err = p.replace(ctx, key, client, obj, entries)
		default:
			err = p.retry(ctx, "patch", key, func(ctx context.Context) error { return store(ctx, client, obj) })
		}
		switch {
		case err == nil:
			if replaces {
				p.replaced++
			}
			return nil
		case kube.IsGone(err, obj.GetName()):
			return nil
		case !apierrors.IsConflict(err):
			return err
		}
		now, exists, failed := p.get(ctx, key, client, obj.GetName())
		switch {
		case !exists:
			return failed
		case now.GetUID() == obj.GetUID() && now.GetResourceVersion() == obj.GetResourceVersion():
			return err // a conflict of an admission webhook
		}
		obj = now
		// A write after the list stored it in the storage version, but it can have kept stale entries.
		rewrite = false
	}
	return errors.New("other clients change it too often")
}

// get reads an object. exists is false if it is gone, and if there is an error.
func (p *pass) get(ctx context.Context, key string, client dynamic.ResourceInterface, name string) (obj *unstructured.Unstructured, exists bool, err error) {
	err = p.retry(ctx, "get", key, func(ctx context.Context) (err error) {
		obj, err = client.Get(ctx, name, metav1.GetOptions{})
		return err
	})
	if kube.IsGone(err, name) {
		return nil, false, nil
	}
	return obj, err == nil, err
}

// An API server before Kubernetes 1.37 removes the managedFields of an object at an update or a patch that cannot
// compute them, because the conversion webhook fails, or a value does not have the type of the schema. It rejects
// an apply in the same case. Therefore objects are rewritten by an apply without fields, and a patch that replaces
// managedFields is tried first.

// store makes the API server store the object again.
func store(ctx context.Context, client dynamic.ResourceInterface, obj *unstructured.Unstructured) (err error) {
	if len(obj.GetManagedFields()) > 0 {
		_, err = client.Apply(ctx, obj.GetName(), identity(obj), metav1.ApplyOptions{FieldManager: manager})
	} else { // an apply would add an entry
		tests := []kube.Operation{kube.TestUID(obj), kube.Test("/metadata/resourceVersion", obj.GetResourceVersion())}
		_, err = kube.Patch(ctx, client, obj.GetName(), tests, metav1.PatchOptions{FieldManager: manager})
	}
	return err
}

// replace replaces the managedFields of an object.
func (p *pass) replace(ctx context.Context, key string, client dynamic.ResourceInterface, obj *unstructured.Unstructured, entries []metav1.ManagedFieldsEntry) error {
	version := obj.GetResourceVersion()
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
		kept := false
		for range maxTries {
			err := p.retry(ctx, "patch", key, func(ctx context.Context) error {
				patched, err := kube.Patch(ctx, client, obj.GetName(), []kube.Operation{
					kube.TestUID(obj), kube.Test("/metadata/resourceVersion", version), {Op: "replace", Path: "/metadata/managedFields", Value: entries},
				}, metav1.PatchOptions{FieldManager: manager, DryRun: dryRun})
				if err != nil {
					return err
				}
				removed := len(patched.GetManagedFields()) == 0 && len(entries) > 0
				if kept = !removed && !p.hasStale(patched); kept {
					return nil
				}
				if removed && len(dryRun) == 0 { // the webhook has failed since the dry run
					version = patched.GetResourceVersion()
				}
				return p.converts(ctx, obj)
			})
			if err != nil {
				return err
			}
			if kept {
				break
			}
		}
		if !kept {
			return errors.New("the API server does not store changes of metadata.managedFields: a value does not have the type of the schema, or a webhook interferes: correct the object or the webhook")
		}
	}
	return nil
}

// converts returns the error of the conversion webhook, if it cannot convert the object to the versions of its
// managers.
func (p *pass) converts(ctx context.Context, obj *unstructured.Unstructured) error {
	if p.definition.none {
		return nil
	}
	for _, e := range obj.GetManagedFields() {
		version, _ := strings.CutPrefix(e.APIVersion, p.definition.resource.Group+"/")
		if e.APIVersion == obj.GetAPIVersion() || p.isStale(e.APIVersion) {
			continue
		}
		_, err := p.m.Client.Resource(p.definition.resource.WithVersion(version)).Namespace(obj.GetNamespace()).Get(ctx, obj.GetName(), metav1.GetOptions{})
		if failedConversion(err) != "" {
			return err
		}
	}
	return nil
}

// identity returns what applies to one version of an object, and has no fields.
func identity(obj *unstructured.Unstructured) *unstructured.Unstructured {
	id := &unstructured.Unstructured{}
	id.SetGroupVersionKind(obj.GroupVersionKind())
	id.SetNamespace(obj.GetNamespace())
	id.SetName(obj.GetName())
	id.SetUID(obj.GetUID())
	id.SetResourceVersion(obj.GetResourceVersion())
	return id
}

// pace waits until the rate allows another write.
func (p *pass) pace(ctx context.Context) error {
	if wait := time.Until(p.next); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
	p.next = time.Now().Add(time.Duration(float64(time.Second) / float64(orDefault(p.m.Rate, defaultRate))))
	return nil
}

// isStale reports whether no client can write the version any more.
func (p *pass) isStale(apiVersion string) bool {
	version, ok := strings.CutPrefix(apiVersion, p.definition.resource.Group+"/")
	return !ok || !p.definition.serves(version)
}

// hasStale reports whether managedFields has an entry of a stale version.
func (p *pass) hasStale(obj *unstructured.Unstructured) bool {
	return slices.ContainsFunc(obj.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return p.isStale(e.APIVersion) })
}

// keepsFields returns an error if the storage version lacks a field of the object.
func (p *pass) keepsFields(ctx context.Context, key string, obj *unstructured.Unstructured) error {
	for _, v := range p.compare {
		var before *unstructured.Unstructured
		err := p.retry(ctx, "get", key, func(ctx context.Context) (err error) {
			before, err = p.m.Client.Resource(p.definition.resource.WithVersion(v.name)).Namespace(obj.GetNamespace()).Get(ctx, obj.GetName(), metav1.GetOptions{})
			return err
		})
		switch {
		case err != nil:
			return err
		case before.GetUID() != obj.GetUID() || before.GetResourceVersion() != obj.GetResourceVersion():
			return apierrors.NewConflict(p.definition.resource, obj.GetName(), errors.New("it has changed since it was listed"))
		}
		if field := missing(before.Object, obj.Object, ""); field != "" {
			return fmt.Errorf("the field %s of %s is absent from %s: move its value to a field of %s, or add the field to the schema of %s", field, v.name, p.storage.name, p.storage.name, p.storage.name)
		}
	}
	return nil
}
