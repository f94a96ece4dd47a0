package debug

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/wire"
)

// Page is the handler of /debug/controllers. The zero value is ready to use. Its fields must
// not change after the first request, and it must not be copied. Its methods may be called
// concurrently.
type Page struct {
	// Title is the heading, such as the name of the process. "" means "controllers".
	Title string

	// Leader returns the state of the election. nil means no election.
	Leader func() Leader

	// Shards returns the shards of this process, such as the shards of a shard.Group's Status.
	// nil means no shards.
	Shards func() Shards

	// Informers returns the informers. nil means a page without informers.
	Informers func() []Informer

	// Verbosity sets how much the process logs, such as [Klog], and returns the former level. A POST
	// request with the parameters verbosity, which is 0 to 5, and for, which is at most 1h, calls it, and
	// again with the former level after that time. client-go logs contents of objects at higher
	// levels only. A user behind a Guard of package serve needs the verb post. nil means that the page cannot set it.
	Verbosity func(level int) (former int)

	reader    wire.Reader
	verbosity verbosity
	read      sync.Mutex // one request at a time collects a state

	mu          sync.Mutex // guards controllers
	controllers []*Controller
}

// Leader is the state of an election.
type Leader struct {
	Lease   string    `json:"lease"` // namespace/name
	Leading bool      `json:"leading"`
	Term    int64     `json:"term"`           // of the present or last leadership of this process
	Since   time.Time `json:"since,omitzero"` // the start or, if Leading is false, the end of that term
}

// Shards is the state of a group of replicas that share the work, as this process sees it.
type Shards struct {
	Owned     []int `json:"owned"`     // the shards whose work runs here; the page shows at most 1,000
	Draining  int   `json:"draining"`  // of Owned
	Ownerless int   `json:"ownerless"` // shards that no replica owns
	Surplus   int   `json:"surplus"`   // shards that must move, because replicas own more than their share
	Replicas  int   `json:"replicas"`  // that take part
}

// Informer is the state of an informer.
type Informer struct {
	Name      string    `json:"name"`
	Objects   int64     `json:"objects"`            // in the cache
	Bytes     int64     `json:"bytes,omitzero"`     // that they take in the heap, about
	LastEvent time.Time `json:"lastEvent,omitzero"` // when an object was last added, changed or removed
	LastData  time.Time `json:"lastData,omitzero"`  // when the API server last sent data, also a bookmark
	Mutated   string    `json:"mutated,omitempty"`  // the object and field that the program last changed in the cache
}

// Controller is one controller of a Page. Page.Controller makes one. Its fields must not
// change after the first request.
type Controller struct {
	// Queue is the queue, such as a queue.Queue. nil means that the page shows no queue.
	Queue interface {
		Snapshot() controllerkit.QueueState
		SnapshotOf(keys ...types.NamespacedName) controllerkit.QueueState
	}

	// Loop is the loop, such as a reconcile.Controller. nil means that the page shows no
	// waiting, parked, hot and failing keys.
	Loop interface {
		Snapshot() controllerkit.LoopState
		SnapshotOf(keys ...types.NamespacedName) controllerkit.LoopState
	}

	// Paused has the paused objects, such as a pause.Set. nil means that the page shows none.
	Paused interface {
		Len() int
		Has(key types.NamespacedName) bool
		Keys(limit int) []types.NamespacedName
	}

	name    string
	page    *Page
	history history
}

// Controller adds a controller to the page. Controllers can be added at any time.
func (p *Page) Controller(name string) *Controller {
	c := &Controller{name: name, page: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.controllers = append(p.controllers, c)
	return c
}

// Gate returns a gate that calls next and records the waits. If next is a
// controllerkit.ReadyEnsurer, its error is the cause of a wait, and the returned gate is one
// too. A nil next gives nil.
func (c *Controller) Gate(next controllerkit.Gate[types.NamespacedName]) controllerkit.Gate[types.NamespacedName] {
	if kube.IsNil(next) {
		return nil
	}
	g := gate{Gate: next, c: c}
	if reasons, ok := next.(controllerkit.ReadyEnsurer[types.NamespacedName]); ok {
		return &reasonedGate{gate: g, reasons: reasons}
	}
	return &g
}

// Source returns an EventAdder that adds keys to next, such as a reconcile.Source, and records
// that it did. The name is a word for the page, such as the resource that an informer watches.
// It panics if next is nil.
func (c *Controller) Source(name string, next controllerkit.EventAdder[types.NamespacedName]) controllerkit.EventAdder[types.NamespacedName] {
	if kube.IsNil(next) {
		panic("debug: Source: next is nil: pass a Source of the loop")
	}
	return &source{c: c, name: kube.Printable(name, maxName), next: next}
}
