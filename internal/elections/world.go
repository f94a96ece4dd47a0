package elections

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

// patience bounds calls that take milliseconds on an idle server.
const patience = 30 * time.Second

// A World is a namespace of an API server, with a record of its Leases and of the
// machine's stalls. Make one with [Open]. Its methods may be called concurrently.
type World struct {
	// Replica returns the configuration of a replica, for example for another API server of
	// the same cluster. Set it before Run. Nil: that of Open.
	Replica func(replica int) *rest.Config

	config    *rest.Config
	namespace string
	leases    coordinationv1client.LeaseInterface // of a person
	stranger  coordinationv1client.LeaseInterface
	late      http.RoundTripper // for packets whose sender may be gone
	noise     noise

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	books map[string]*book
	err   error
}

// Open starts a watch of the Leases of a namespace. The configuration must not have a
// rate limiter. Close ends the watch.
func Open(ctx context.Context, config *rest.Config, namespace string) (*World, error) {
	w := &World{config: config, namespace: namespace, books: map[string]*book{}}
	client := func(agent string) (coordinationv1client.LeaseInterface, error) {
		c := rest.CopyConfig(config)
		c.UserAgent = agent
		clients, err := coordinationv1client.NewForConfig(c)
		if err != nil {
			return nil, err
		}
		return clients.Leases(namespace), nil
	}
	var err error
	if w.leases, err = client(personName); err != nil {
		return nil, err
	}
	if w.stranger, err = client(strangerName); err != nil {
		return nil, err
	}
	if w.late, err = rest.TransportFor(config); err != nil {
		return nil, err
	}
	probe, err := w.leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	ctx, w.stop = context.WithCancel(ctx)
	watching, err := w.leases.Watch(ctx, metav1.ListOptions{ResourceVersion: probe.ResourceVersion})
	if err != nil {
		w.stop()
		return nil, err
	}
	w.wg.Go(func() { w.record(ctx, watching, probe.ResourceVersion) })
	w.wg.Go(func() { w.noise.tick(ctx) })
	w.wg.Go(func() { w.noise.probe(ctx, w.leases, probe) })
	return w, nil
}

// Close ends the watch.
func (w *World) Close() {
	w.stop()
	w.wg.Wait()
}

// Stalled returns for how long of the given time this process or the server was seen to
// stand still.
func (w *World) Stalled(from, to time.Time) time.Duration { return w.noise.within(from, to) }

// record stores every version of every Lease. It restarts a watch where the last one
// ended.
func (w *World) record(ctx context.Context, watching watch.Interface, rv string) {
	for ctx.Err() == nil {
		if watching == nil {
			err := outlast(ctx, func() (err error) {
				watching, err = w.leases.Watch(ctx, metav1.ListOptions{ResourceVersion: rv})
				return err
			})
			if err != nil {
				w.fail(ctx, err)
				return
			}
		}
		for event := range watching.ResultChan() {
			lease, ok := event.Object.(*coordinationv1.Lease)
			if !ok {
				if err := apierrors.FromObject(event.Object); !isOutage(err) {
					w.fail(ctx, fmt.Errorf("the watch ended: %w", err))
				}
				break
			}
			rv = lease.ResourceVersion
			w.book(lease.Name).add(version{at: time.Now(), lease: lease, deleted: event.Type == watch.Deleted, writer: writerOf(lease)})
		}
		watching.Stop()
		watching = nil
	}
}

// outlast calls f again while the API server or its etcd is out, for as long as patience.
func outlast(ctx context.Context, f func() error) error {
	for until := time.Now().Add(patience); ; sleep(ctx, time.Now().Add(100*time.Millisecond)) {
		err := f()
		if err == nil || !isOutage(err) || ctx.Err() != nil || time.Now().After(until) {
			return err
		}
	}
}

// isOutage reports whether an error is no response, or a response that a later request may not get.
func isOutage(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError || status.Status().Code == http.StatusTooManyRequests
}

// fail keeps the error and wakes the waiting goroutines.
func (w *World) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	w.err = errors.Join(w.err, err)
	w.mu.Unlock()
}

// A book has the versions of one Lease.
type book struct {
	mu       sync.Mutex // guards the fields below
	versions []version
	changed  time.Time // the last change of the record
	news     chan struct{}
}

type version struct {
	at      time.Time
	lease   *coordinationv1.Lease
	deleted bool
	writer  string // of the record: the last writer of renewTime
}

func (v version) holder() string {
	if v.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *v.lease.Spec.HolderIdentity
}

func (v version) transitions() int32 {
	if v.lease.Spec.LeaseTransitions == nil {
		return 0
	}
	return *v.lease.Spec.LeaseTransitions
}

func (w *World) book(name string) *book {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.books[name]
	if b == nil {
		b = &book{news: make(chan struct{})}
		w.books[name] = b
	}
	return b
}

func (w *World) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.books, name)
}

func (b *book) add(v version) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.versions); n == 0 || v.deleted || !apiequality.Semantic.DeepEqual(b.versions[n-1].lease.Spec, v.lease.Spec) {
		b.changed = v.at
	}
	b.versions = append(b.versions, v)
	close(b.news)
	b.news = make(chan struct{})
}

// reached waits until the book has the given version, or a later one.
func (b *book) reached(ctx context.Context, rv string) error {
	want, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return err
	}
	timeout := time.After(patience)
	for {
		b.mu.Lock()
		news := b.news
		var last uint64
		if n := len(b.versions); n > 0 {
			last, err = strconv.ParseUint(b.versions[n-1].lease.ResourceVersion, 10, 64)
		}
		b.mu.Unlock()
		if err != nil || last >= want {
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout:
			return fmt.Errorf("the watch has not shown version %s after %v", rv, patience)
		}
	}
}

// last returns the newest version of the watch and the time of its record's last
// change, or false if the Lease is absent.
func (b *book) last() (v version, changed time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.versions); n > 0 && !b.versions[n-1].deleted {
		return b.versions[n-1], b.changed, true
	}
	return version{}, time.Time{}, false
}

func (b *book) all() []version {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.versions[:len(b.versions):len(b.versions)]
}

// writerOf returns the user agent that owns renewTime, which every write of an elector
// changes.
func writerOf(lease *coordinationv1.Lease) string {
	for _, entry := range lease.ManagedFields {
		if entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Spec map[string]any `json:"f:spec"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, owns := fields.Spec["f:renewTime"]; owns {
			return entry.Manager
		}
	}
	return ""
}
