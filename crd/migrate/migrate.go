package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	defaultSettle = 2 * time.Minute
	defaultRate   = 50
	defaultRetry  = 10 * time.Minute
	defaultPage   = 100
	firstPage     = 5       // objects; the API server stores at most 1.5 MiB of each
	maxPage       = 8 << 20 // bytes of a page whose objects are as large as in the page before
)

// Metrics is called by a Migrator. A *metrics.Metrics implements it.
type Metrics interface {
	// MigrationProgress is called at the begin of Run, at the begin and the end of each pass, and after each page of objects.
	// objects is the number of objects that the pass has handled, of which failed ones could not be
	// migrated. done reports whether the migration is complete.
	MigrationProgress(definition string, objects, failed int, done bool)

	// MigrationEnded is called when Run returns, such as at the end of a term: another replica migrates from then on.
	MigrationEnded(definition string)
}

// A Migrator migrates the stored objects of one CustomResourceDefinition to its storage version.
// One migration has these steps:
//
//   - It waits for Settle.
//   - It reads all objects in pages. If status.storedVersions has another version than the storage
//     version, it sends a patch for each object, which changes no field. If an entry of the object's
//     managedFields has a version that is not served, the patch replaces it by the storage version.
//   - It narrows status.storedVersions to the storage version.
//
// The condition StoredVersionsMigrated of the definition has the step, the failed objects, and at
// the end the managers that own fields in served versions other than the storage version. Such a
// manager can be one that still writes the old version. Its writes are stored in the storage version.
//
// Each change of the spec begins a migration. If the spec is the same, one that has ended is not
// repeated, and one that was interrupted continues.
//
// The fields are the configuration, and must not change after the first call. Run and Once can be
// called at the same time, also by several processes: they repeat work of each other.
type Migrator struct {
	// Client reads and writes the definition and its objects. It is required.
	Client dynamic.Interface

	// Definition is the name of the CustomResourceDefinition, such as websites.example.com. It is
	// required.
	Definition string

	// Settle is the time without a change of the spec before the first object is written. Use more
	// than the timeout of requests to the API server, which is a minute by default, and the delay
	// with which the slowest API server sees the change. 0 means 2 minutes.
	Settle time.Duration

	// Rate is the limit of writes of objects in one second. 0 means 50.
	Rate float32

	// Retry is the time until Run tries again to migrate objects that failed. 0 means 10 minutes.
	Retry time.Duration

	// Metrics receives the progress. Nil disables it.
	Metrics Metrics

	page int64 // the largest number of objects of a page; 0 means 100
}

// A Report is the result of a migration.
type Report struct {
	// Version is the storage version.
	Version string

	// Objects is the number of objects that this call has read. It is 0 if an earlier call has
	// completed the migration.
	Objects int

	// Replaced is the number of objects of which this call has replaced versions in managedFields.
	Replaced int

	// Writers has the managers that own fields in served versions other than Version, by version.
	// At most 20 managers of a version are named.
	Writers map[string][]string
}

// A BlockedError has the objects that could not be migrated. status.storedVersions has not been
// changed.
type BlockedError struct {
	Objects int     // the number of objects
	Errs    []error // of the first 10 objects, whose names they have
}

// Error names the first objects and their errors.
func (e *BlockedError) Error() string {
	texts := make([]string, len(e.Errs))
	for i, err := range e.Errs {
		texts[i] = err.Error()
	}
	more := ""
	if n := e.Objects - len(e.Errs); n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return fmt.Sprintf("migrate: %d objects cannot be migrated: correct or delete them: %s%s", e.Objects, strings.Join(texts, "; "), more)
}

// Unwrap returns Errs.
func (e *BlockedError) Unwrap() []error { return e.Errs }

// errChanged reports that the spec of the definition is another one than at the begin of the pass.
var errChanged = errors.New("migrate: the definition has changed")

func (m *Migrator) check() error {
	plural, group, ok := strings.Cut(m.Definition, ".")
	switch {
	case m.Client == nil:
		return errors.New("migrate: Client is nil: pass a dynamic client")
	case !ok || plural == "" || group == "":
		return fmt.Errorf("migrate: Definition is %q: use the name of the CustomResourceDefinition, such as websites.example.com", kube.Printable(m.Definition, 256))
	case m.Settle < 0 || m.Rate < 0 || m.Retry < 0:
		return fmt.Errorf("migrate: Settle is %v, Rate is %v and Retry is %v: use positive values, or 0 for the default", m.Settle, m.Rate, m.Retry)
	}
	return nil
}

// Once migrates the objects, and returns when the migration is complete or cannot be. It
// retries requests that an API server cannot handle now until ctx is done, also if the reason is that it
// cannot call the conversion webhook. The condition has the reason Waiting meanwhile. If
// objects cannot be migrated, it migrates the others and returns a [*BlockedError].
func (m *Migrator) Once(ctx context.Context) (Report, error) {
	if err := m.check(); err != nil {
		return Report{}, err
	}
	p, err := m.once(ctx)
	if p == nil {
		return Report{}, err
	}
	return p.result(), err
}

// once makes passes until the spec stays the same during one. It returns the last pass, if it has
// read the definition.
func (m *Migrator) once(ctx context.Context) (*pass, error) {
	for {
		p, err := m.begin(ctx)
		if err == nil {
			err = p.run(ctx)
		}
		if err != nil && p != nil && ctx.Err() == nil && !errors.Is(err, errChanged) {
			// The failure can follow from a change.
			if d, getErr := m.get(ctx); getErr == nil && !p.isOf(d) {
				err = errChanged
			}
		}
		switch {
		case errors.Is(err, errChanged):
			klog.FromContext(ctx).Info("The spec of the definition has changed: its migration begins again", "definition", m.Definition)
			continue
		case err != nil && p != nil:
			p.fail(ctx, err)
		}
		return p, err
	}
}

// Run migrates the objects, and again after each change of the definition's spec, until ctx is
// done. Then it returns nil. It logs errors and retries.
func (m *Migrator) Run(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if m.Metrics != nil {
		m.Metrics.MigrationProgress(m.Definition, 0, 0, false) // also if the definition cannot be read
		defer m.Metrics.MigrationEnded(m.Definition)
	}
	w, err := watch(ctx, m.Client, m.Definition)
	if err != nil {
		return err
	}
	defer w.running.Wait()
	defer cancel()
	logger := klog.FromContext(ctx).WithValues("definition", m.Definition)
	for {
		p, err := m.once(ctx)
		retry := orDefault(m.Retry, defaultRetry)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			logger.Error(err, "The stored objects are not migrated")
		default:
			r := p.result()
			logger.Info("All objects are stored in the storage version", "version", r.Version, "objects", r.Objects, "replaced", r.Replaced, "writers", r.Writers)
			retry = 0
		}
		if !w.wait(ctx, p, retry) {
			return nil
		}
	}
}

// A watched definition is the latest one of an informer.
type watched struct {
	running sync.WaitGroup
	changed chan struct{} // receives a value after each event

	mu     sync.Mutex  // guards latest
	latest *definition // nil before it exists
}

// watch watches a definition until ctx is done.
func watch(ctx context.Context, client dynamic.Interface, name string) (*watched, error) {
	w := &watched{changed: make(chan struct{}, 1)}
	seen := func(object any) {
		obj, ok := object.(*unstructured.Unstructured)
		if !ok {
			return
		}
		w.mu.Lock()
		w.latest = read(obj)
		w.mu.Unlock()
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, definitions(), "", 0, nil, func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + name
	}).Informer()
	handler := cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, object any) { seen(object) }}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return nil, fmt.Errorf("migrate: watch CustomResourceDefinition %s: %w", name, err)
	}
	w.running.Go(func() { informer.RunWithContext(ctx) })
	return w, nil
}

// wait waits until the definition has changed since the pass, or is established and was not when the
// pass began, or the time has passed. A time of 0 is unlimited. It returns false if ctx is done.
func (w *watched) wait(ctx context.Context, p *pass, d time.Duration) bool {
	var after <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		after = timer.C
	}
	for {
		w.mu.Lock()
		latest := w.latest
		w.mu.Unlock()
		if p != nil && latest != nil && (p.isBefore(latest) || p.isOf(latest) && latest.isEstablished() && !p.established) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-after:
			return true
		case <-w.changed:
			if p == nil {
				return true
			}
		}
	}
}

// retry calls a request until the API server can handle it, or ctx is done. Then the error wraps the
// error of ctx and the last response's.
func (m *Migrator) retry(ctx context.Context, verb, name string, request func(context.Context) error) error {
	unserved := 0
	var last error
	for delay := minDelay; ; delay = min(2*delay, maxDelay) {
		limited, cancel := context.WithTimeout(ctx, requestTimeout)
		err := request(limited)
		cancel()
		if isUnserved(err) { // for a moment, such as while an API server starts
			unserved++
		}
		if last != nil && err != nil && ctx.Err() != nil {
			return ended(ctx, last)
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, errChanged) || !isTransient(err) && (!isUnserved(err) || unserved > maxUnserved) {
			return err
		}
		klog.FromContext(ctx).Info("The API server cannot handle a request of the migration now: it is sent again",
			"definition", m.Definition, "verb", verb, "object", kube.Printable(name, 512), "err", kube.Printable(err.Error(), 2<<10), "delay", delay)
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ended(ctx, err)
		case <-timer.C:
		}
		last = err
	}
}

// ended returns the error of a request that ctx ended after another error.
func ended(ctx context.Context, last error) error {
	return fmt.Errorf("%w; the last error is: %w", ctx.Err(), last)
}

const (
	minDelay       = 100 * time.Millisecond
	maxDelay       = 30 * time.Second
	requestTimeout = 90 * time.Second
	maxUnserved    = 8 // responses to one request, during half a minute
)

// isTransient reports whether the same request can succeed later without a change by a person.
func isTransient(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || isOutage(err)
}

// isUnserved reports whether the API server does not serve the resource.
func isUnserved(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err)
}

func orDefault[T int64 | float32 | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}
