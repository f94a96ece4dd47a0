package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/internal/pause"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	defaultAuditPeriod = 10 * time.Minute

	auditPage     = 500
	auditPause    = 250 * time.Millisecond // between two requests
	auditTimeout  = 30 * time.Second       // of a request
	auditPatience = 3 * time.Minute        // three of the server's bookmarks
	auditSuspects = 1000                   // objects of a round that differ at first
	auditTries    = 3                      // to read an object that changes meanwhile
	maxAuditText  = 4 << 10                // of an error in a line of log
)

// Audit compares the caches of informers with the API server and reports what a cache has
// lost. An informer can lose an event to a proxy, to a fault of the server or of its own, and
// then only an audit shows it. The list function lists metadata, as the metadata client does:
//
//	audit := &informer.Audit{}
//	audit.Add("pods", pods.Informer(), metadataClient.Resource(corev1.SchemeGroupVersion.WithResource("pods")).List)
//	group.Add("audit", audit.Run)
//
// A round reads names, UIDs and resource versions in pages of 500, at most 4 requests a
// second and one at a time. The zero value is ready to use. An Audit must not be copied.
type Audit struct {
	// Period is the time between the starts of two rounds. If a round takes longer, the
	// next starts at once. 0 means 10m.
	Period time.Duration

	// Report is called with each difference, by one goroutine. nil logs it. [Set.Relist] cures
	// it: client-go's informers do not list again by themselves.
	Report func(Difference)

	mu      sync.Mutex // guards the fields below
	caches  []audited
	misuse  error
	running bool // a Run has not returned
}

// Difference is a loss that an Audit found.
type Difference struct {
	Name   string // of the informer, as given to Add
	Key    string // namespace/name of the object; "" if the whole cache differs
	Cached string // resource version in the cache; "" if the object is not there
	Server string // resource version on the API server; "" if the object is not there
}

// String returns a sentence about the difference.
func (d Difference) String() string {
	switch {
	case d.Key == "" && newer(d.Cached, d.Server):
		return fmt.Sprintf("informer: %q: the API server is at version %s, and the informer at %s: etcd was restored from a backup: call Set.Relist or restart the process", d.Name, d.Server, d.Cached)
	case d.Key == "":
		return fmt.Sprintf("informer: %q: the cache is still at version %q after %v, and the API server was at %s: its watch is stalled", d.Name, d.Cached, auditPatience, d.Server)
	case d.Cached == "":
		return fmt.Sprintf("informer: %q: the cache lacks %s, which the API server has at version %s", d.Name, d.Key, d.Server)
	case d.Server == "":
		return fmt.Sprintf("informer: %q: the cache has %s at version %s, which the API server has deleted", d.Name, d.Key, d.Cached)
	}
	return fmt.Sprintf("informer: %q: the cache has %s at version %s, and the API server at %s", d.Name, d.Key, d.Cached, d.Server)
}

// newer reports whether version a is after b. An invalid version is before all others.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// audited is a cache to audit.
type audited struct {
	name     string
	informer cache.SharedIndexInformer
	list     func(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
}

// Add adds an informer. list must list the metadata of the objects that the informer watches: the
// same resource, namespace and selectors. It must pass the options on, with selectors added. The
// rights of the informer are enough for it. name is for errors: use the resource, such as
// "deployments.apps". An informer that is added while Run runs is audited from the next round on.
func (a *Audit) Add(name string, informer cache.SharedIndexInformer, list func(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case kube.IsNil(informer):
		a.misuse = errors.Join(a.misuse, fmt.Errorf("informer: Audit.Add(%q) got a nil informer: pass one", name))
	case list == nil:
		a.misuse = errors.Join(a.misuse, fmt.Errorf("informer: Audit.Add(%q) got no function list: pass the List of a metadata client", name))
	default:
		a.caches = append(a.caches, audited{name, informer, list})
	}
}

// Run audits the caches, one after the other, until ctx is done, and returns nil then. It
// waits a Period before the first round. It leaves out an informer that has not synced. A
// failed request ends the round of its informer, with a line of log. Run returns an error if a
// field or an argument of Add is invalid, also of a later Add, if there is no informer, or if the
// Audit runs already.
func (a *Audit) Run(ctx context.Context) error {
	if err := a.begin(); err != nil {
		return err
	}
	defer func() {
		a.mu.Lock()
		a.running = false
		a.mu.Unlock()
	}()
	next := time.Now()
	for {
		next = next.Add(cmp.Or(a.Period, defaultAuditPeriod))
		if now := time.Now(); next.Before(now) {
			next = now
		}
		if !pause.For(ctx, time.Until(next)) {
			return nil
		}
		a.mu.Lock()
		caches, misuse := a.caches, a.misuse
		a.mu.Unlock()
		if misuse != nil {
			return misuse
		}
		for _, c := range caches {
			found, err := c.audit(ctx)
			select {
			case <-ctx.Done(): // found can be what only lags
				return nil
			default:
			}
			if err != nil {
				klog.FromContext(ctx).Error(kube.PrintableError(err, maxAuditText), "Cannot audit a cache", "informer", c.name)
			}
			for _, d := range found {
				if a.Report != nil {
					a.Report(d)
				} else {
					klog.FromContext(ctx).Error(kube.PrintableError(errors.New(d.String()), maxAuditText), "A cache differs from the API server")
				}
			}
		}
	}
}

// begin validates the Audit and marks it as running.
func (a *Audit) begin() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.misuse
	if a.Period < 0 {
		err = errors.Join(err, fmt.Errorf("informer: Audit.Period is %v: set it to a positive duration, or to 0 for %v", a.Period, defaultAuditPeriod))
	}
	switch {
	case err != nil:
		return err
	case a.running:
		return errors.New("informer: the Audit runs already: use one Audit for each Run")
	case len(a.caches) == 0:
		return errors.New("informer: the Audit has no informers: call Add before Run")
	}
	a.running = true
	return nil
}

// object identifies a state of an object. The zero value is no object.
type object struct {
	uid     types.UID
	version string
}

// cached returns the cached object with the key.
func (c audited) cached(key string) object {
	m, ok := headers.Get(c.informer.GetStore(), key)
	if !ok {
		return object{}
	}
	return object{m.GetUID(), m.GetResourceVersion()}
}

// suspect is an object that differed when it was listed. Most differ because the cache lags.
type suspect struct {
	key    string
	listed object
}

// audit is a round for one cache. The lists show the state at one version. When the cache has
// passed that version, an object in it that is older than its listed state has lost an event.
func (c audited) audit(ctx context.Context) ([]Difference, error) {
	if !c.informer.HasSynced() {
		return nil, nil
	}
	before := c.informer.LastSyncResourceVersion()
	version, suspects, err := c.compare(ctx)
	if err != nil {
		return nil, err
	}
	if newer(before, version) {
		return []Difference{{Name: c.name, Cached: before, Server: version}}, nil
	}
	if len(suspects) == 0 {
		return nil, nil
	}
	if behind := c.reach(ctx, version); behind != nil {
		return []Difference{*behind}, nil
	}
	var found []Difference
	for _, s := range suspects {
		d, err := c.judge(ctx, s, version)
		if err != nil {
			return found, err
		}
		if d != nil {
			found = append(found, *d)
		}
	}
	return found, nil
}

// compare lists all objects, and returns the version of the list and the objects that the
// cache shows in another state.
func (c audited) compare(ctx context.Context) (version string, suspects []suspect, err error) {
	seed := maphash.MakeSeed()
	listed := map[uint64]struct{}{} // hashes, because names would take several times the memory
	options := metav1.ListOptions{Limit: auditPage}
	for {
		list, err := c.page(ctx, options)
		if err != nil {
			return "", nil, err
		}
		version = list.ResourceVersion
		for _, item := range list.Items {
			key := cache.MetaObjectToName(&item).String()
			listed[maphash.String(seed, key)] = struct{}{}
			if state := (object{item.UID, item.ResourceVersion}); c.cached(key) != state && len(suspects) < auditSuspects {
				suspects = append(suspects, suspect{key, state})
			}
		}
		if list.Continue == "" {
			break
		}
		options.Continue = list.Continue
	}
	for _, key := range c.informer.GetStore().ListKeys() {
		if len(suspects) == auditSuspects {
			break
		}
		if _, ok := listed[maphash.String(seed, key)]; !ok {
			suspects = append(suspects, suspect{key: key})
		}
	}
	return version, suspects, nil
}

// page sends a list and pauses after it.
func (c audited) page(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	timed, cancel := context.WithTimeout(ctx, auditTimeout)
	defer cancel()
	list, err := c.list(timed, options)
	if err == nil && (list == nil || list.ResourceVersion == "") {
		err = errors.New("informer: the list has no resource version")
	}
	if err == nil && !pause.For(ctx, auditPause) {
		err = ctx.Err()
	}
	return list, err
}

// reach waits until the cache has passed the version. It returns a difference if that takes
// too long.
func (c audited) reach(ctx context.Context, version string) *Difference {
	for deadline := time.Now().Add(auditPatience); ; {
		at := c.informer.GetStore().LastStoreSyncResourceVersion()
		switch {
		case at == version || newer(at, version):
			return nil
		case time.Now().After(deadline):
			return &Difference{Name: c.name, Cached: at, Server: version}
		case !pause.For(ctx, time.Second):
			return nil // the round ends
		}
	}
}

// judge compares a suspect with the cache, which has passed the version of its list.
func (c audited) judge(ctx context.Context, s suspect, version string) (*Difference, error) {
	for range auditTries {
		have := c.cached(s.key)
		d := &Difference{Name: c.name, Key: s.key, Cached: have.version, Server: s.listed.version}
		switch {
		case have == s.listed, newer(have.version, version), newer(have.version, s.listed.version):
			return nil, nil // the cache lagged, or the object was changed after the list
		case have.version != "":
			return d, nil
		}
		// The cache has none: the object was deleted after the list, or its event is lost.
		namespace, name, err := cache.SplitMetaNamespaceKey(s.key)
		if err != nil {
			return nil, err
		}
		selector := fields.Set{"metadata.name": name}
		if namespace != "" {
			selector["metadata.namespace"] = namespace
		}
		list, err := c.page(ctx, metav1.ListOptions{FieldSelector: selector.String()})
		if err != nil {
			return nil, err
		}
		var live object
		for _, item := range list.Items {
			if cache.MetaObjectToName(&item).String() == s.key {
				live = object{item.UID, item.ResourceVersion}
			}
		}
		switch live {
		case object{}:
			return nil, nil // it was deleted after the list
		case s.listed:
			return d, nil // it exists since before the version that the cache has passed
		}
		s.listed, version = live, list.ResourceVersion
		if behind := c.reach(ctx, version); behind != nil {
			return behind, nil
		}
	}
	return nil, nil // it changes too fast
}
