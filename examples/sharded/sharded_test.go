package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// For a night: go test -run '^TestServerSharded$' ./examples/sharded -processes 8 -shards 32 -objects 5000
var (
	processes = flag.Int("processes", 3, "number of `replicas` of TestServerSharded, at least 3")
	shards    = flag.Int("shards", 8, "their number of `shards`")
	objects   = flag.Int("objects", 40, "their number of `objects`")
)

const patience = 2 * time.Minute // for what has an event; a slow machine needs it

// A service records the publications, and judges the owners of each object: a replica that
// sent later than the first request of the next term has overlapped with it.
type service struct {
	ranges shard.Ranges // to which shard each object belongs; the zero value if that changes

	mu       sync.Mutex
	last     map[types.UID]publication // of the highest term
	first    map[types.UID]time.Time   // Sent of that term's first
	terms    int
	total    int
	overlaps []string
	changed  chan struct{} // closed by the next publication
}

func newService(ranges shard.Ranges) *service {
	return &service{ranges: ranges, last: map[types.UID]publication{}, first: map[types.UID]time.Time{}, changed: make(chan struct{})}
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var p publication
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(s.take(p))
}

// take returns the status of the response to a publication.
func (s *service) take(p publication) (status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := p.Object.UID
	last, first := s.last[id], s.first[id]
	s.total++
	if of, err := s.ranges.Of(p.Object); s.ranges.N > 0 && (err != nil || of != p.Shard.Index) {
		s.overlaps = append(s.overlaps, fmt.Sprintf("%+v is of shard %d, %v", p, of, err))
	}
	switch {
	case p.Shard.Term == last.Shard.Term && p.Replica != last.Replica,
		p.Shard.Term < last.Shard.Term && p.Sent.After(first),
		p.Shard.Term > last.Shard.Term && p.Sent.Before(last.Sent):
		s.overlaps = append(s.overlaps, fmt.Sprintf("%+v beside %+v, which began at %v", p, last, first))
	}
	if p.Shard.Term > last.Shard.Term {
		s.first[id] = p.Sent
		s.terms++
	}
	switch {
	case p.Shard.Term < last.Shard.Term:
		return http.StatusConflict
	case p.Sent.After(last.Sent):
		s.last[id] = p
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return http.StatusOK
}

// await waits until the last publications of all objects are as wanted.
func (s *service) await(t *testing.T, what string, wanted func(last map[types.UID]publication) bool) {
	t.Helper()
	limit := time.After(patience)
	for {
		s.mu.Lock()
		ok, changed, total := len(s.last) == *objects && wanted(s.last), s.changed, s.total
		s.mu.Unlock()
		if ok {
			t.Logf("%s: %d publications", what, total)
			return
		}
		select {
		case <-changed:
		case <-limit:
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Fatalf("%s: not after %v: %d publications of %d objects", what, patience, s.total, len(s.last))
		}
	}
}

// each calls f for 0 to n-1, some at a time.
func each(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// TestServerSharded runs replicas of the program as processes: they join, one is frozen until
// the others have its shards, one is killed, one is stopped. At last replicas with another
// number of shards replace them, as a Deployment replaces its Pods. The service sees each
// object's last version, and no two owners of an object.
//
// "two owners" has two publications of one object in the order in which the service got them, and
// the fault is before the second. A wait that ends without success is followed by the last lines of
// each replica: look there for "The Lease is lost" and for the time of the last renewal.
func TestServerSharded(t *testing.T) {
	cfg := testserver.Config(t)
	ns := testserver.Namespace(t)
	fast := rest.CopyConfig(cfg)
	fast.QPS = -1
	client := kubernetes.NewForConfigOrDie(fast).CoreV1().ConfigMaps(ns)
	each(t, *objects+3, func(i int) error {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i), Labels: map[string]string{"publish": "yes"}}, Data: map[string]string{"version": "1"}}
		if i >= *objects {
			m.Labels = nil
		}
		_, err := client.Create(t.Context(), m, metav1.CreateOptions{})
		return err
	})
	log := newService(shard.Ranges{})
	server := httptest.NewServer(log)
	t.Cleanup(server.Close)
	bin := filepath.Join(t.TempDir(), "sharded")
	if err := testprocess.Build(t.Context(), bin, "."); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", testprocess.Kubeconfig(t, cfg))
	lease := "6s"
	if *objects > 1000 {
		lease = "15s"
	}
	var replicas []*lab.Process
	start := func(shards int) {
		t.Helper()
		p, err := lab.StartProcess(bin, "-url", server.URL, "-namespace", ns, "-shards", fmt.Sprint(shards), "-lease-duration", lease)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.Kill()
			if t.Failed() || strings.Contains(p.Output(), "DATA RACE") {
				t.Errorf("a replica:\n%s", p.Tail(40))
			}
		})
		replicas = append(replicas, p)
	}
	stop := func(p *lab.Process) {
		t.Helper()
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	change := func(version string) {
		t.Helper()
		each(t, *objects, func(i int) error {
			_, err := client.Patch(t.Context(), fmt.Sprint("m", i), types.MergePatchType, []byte(`{"data":{"version":"`+version+`"}}`), metav1.PatchOptions{})
			return err
		})
	}
	// await waits until each of the replicas has published something last, and no other one, and
	// all of the version.
	await := func(what, version string, replicas ...*lab.Process) {
		t.Helper()
		log.await(t, what, func(last map[types.UID]publication) bool {
			counts := map[string]int{}
			for _, p := range last {
				if p.Object.Data["version"] != version {
					return false
				}
				counts[p.Replica]++
			}
			for _, p := range replicas {
				if counts[fmt.Sprint("pid-", p.OS().Pid)] == 0 {
					return false
				}
			}
			return len(counts) == len(replicas)
		})
	}

	for range *processes {
		start(*shards)
	}
	await("all have started", "1", replicas...)
	if err := testprocess.Freeze(replicas[0].OS()); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("a process cannot be stopped on this system")
	} else if err != nil {
		t.Fatal(err)
	}
	change("2")
	await("one is frozen", "2", replicas[1:]...)
	if err := testprocess.Thaw(replicas[0].OS()); err != nil {
		t.Fatal(err)
	}
	await("it goes on", "2", replicas...)
	replicas[1].Kill()
	replicas = slices.Delete(replicas, 1, 2)
	await("one is killed", "2", replicas...)
	start(*shards)
	await("one joins", "2", replicas...)
	stop(replicas[0])
	replicas = replicas[1:]
	change("3")
	await("one is stopped", "3", replicas...)
	old := replicas
	for replicas = nil; len(replicas) < *processes; {
		start(*shards + 5)
	}
	change("4")
	await("others wait", "4", old...)
	for _, p := range old {
		stop(p)
	}
	await("the number of shards is changed", "4", replicas...)

	log.mu.Lock()
	defer log.mu.Unlock()
	for _, o := range log.overlaps {
		t.Error("two owners: ", o)
	}
	t.Logf("%d publications in %d terms of %d objects by %d processes", log.total, log.terms, *objects, 2**processes+1)
}

// TestServerStop sends SIGTERM to the only replica during a publication that takes 14s, with the
// default times: the publication ends, no other begins, the shards are released, and the exit
// code is 0.
func TestServerStop(t *testing.T) {
	cfg := testserver.Config(t)
	ns := testserver.Namespace(t)
	kube := kubernetes.NewForConfigOrDie(cfg)
	const slow = 14 * time.Second
	begun := make(chan time.Time, 1)
	var publications atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if publications.Add(1) == 1 {
			begun <- time.Now()
			<-time.After(slow) // the slow service
		}
	}))
	t.Cleanup(server.Close)
	bin := filepath.Join(t.TempDir(), "sharded")
	if err := testprocess.Build(t.Context(), bin, "."); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", testprocess.Kubeconfig(t, cfg))
	p, err := lab.StartProcess(bin, "-url", server.URL, "-namespace", ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{"publish": "yes"}}}
	if _, err := kube.CoreV1().ConfigMaps(ns).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var call time.Time
	select {
	case call = <-begun:
	case <-p.Ended():
		t.Fatalf("the program ended:\n%s", p.Tail(20))
	case <-time.After(patience):
		t.Fatalf("no publication after %v:\n%s", patience, p.Tail(20))
	}
	if err := p.Stop(); err != nil { // with the exit code
		t.Fatal(err)
	}
	if took := time.Since(call); took < slow {
		t.Errorf("the program stopped %v after the begin of the publication, which takes %v", took, slow)
	}
	if n := publications.Load(); n != 1 {
		t.Errorf("%d publications, want the one that ended", n)
	}
	leases, err := kube.CoordinationV1().Leases(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases.Items { // the group's own tells how many replicas there are
		if holder := l.Spec.HolderIdentity; holder != nil && *holder != "" && *holder != "0 replicas, 32 shards" {
			t.Errorf("Lease %s is held by %q after the stop:\n%s", l.Name, *holder, p.Tail(20))
		}
	}
}

// TestServerTimeout: a request has an end, so that a service which does not answer holds no worker for ever. It comes
// from a queue that was empty before Run.
func TestServerTimeout(t *testing.T) {
	cfg := testserver.Config(t)
	ns := testserver.Namespace(t)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{"publish": "yes"}}}
	if _, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(ns).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	requests, logs := make(sent, 1), testlog.New()
	ctx, stop := context.WithCancel(logs.Context(t.Context()))
	ended := make(chan error, 1)
	go func() {
		group := &shard.Group{Namespace: ns, Name: "sharded", Identity: "one", Ranges: shard.Ranges{N: 1}, RetryPeriod: time.Second}
		ended <- run(ctx, rest.CopyConfig(cfg), group, "http://service", requests)
	}()
	select {
	case r := <-requests:
		if end, ok := r.Context().Deadline(); !ok || time.Until(end) > 15*time.Second {
			t.Errorf("the request ends at %v", end)
		}
	case err := <-ended:
		t.Fatal("the program ended: ", err)
	case <-time.After(patience):
		t.Fatalf("no publication after %v", patience)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, line := range logs.All() {
		if strings.HasPrefix(line.Message, "Keys were in the queue") {
			t.Error(line.Message)
		}
	}
}

// TestServerReplacedObject: while an object is published, it is deleted and created again in another shard. The loop of
// the first shard, which runs the name again, leaves the new object to the other one.
func TestServerReplacedObject(t *testing.T) {
	cfg := testserver.Config(t)
	ns := testserver.Namespace(t)
	client, ranges := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(ns), shard.Ranges{N: 2}
	create := func(name string, wanted func(shard int) bool) *corev1.ConfigMap { // has a uid of the wanted shard
		t.Helper()
		for {
			m, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"publish": "yes"}}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if of, err := ranges.Of(m); err != nil {
				t.Fatal(err)
			} else if wanted(of) {
				return m
			}
			if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := &slow{service: newService(ranges), began: make(chan publication, 100), release: make(chan struct{})}
	awaitOf := func(m *corev1.ConfigMap) int {
		t.Helper()
		for timeout := time.After(patience); ; {
			select {
			case p := <-s.began:
				if p.Object.UID == m.UID {
					return p.Shard.Index
				}
			case <-timeout:
				t.Fatalf("no publication of %s after %v", m.Name, patience)
			}
		}
	}
	first := create("m", func(int) bool { return true })
	s.held = first.UID
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), testlog.Silent()))
	ended := make(chan error, 1)
	go func() {
		group := &shard.Group{Namespace: ns, Name: "sharded", Identity: "one", Ranges: ranges, RetryPeriod: time.Second}
		ended <- run(ctx, rest.CopyConfig(cfg), group, "http://service", s)
	}()
	of := awaitOf(first)
	if err := client.Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitOf(create("m", func(shard int) bool { return shard != of })) // so the first loop knows that its object is gone
	close(s.release)
	awaitOf(create("marker", func(shard int) bool { return shard == of })) // behind m in the queue of the first loop
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, overlap := range s.service.overlaps {
		t.Error(overlap)
	}
}

// slow is the transport of a service that responds to the publications of one object after its release.
type slow struct {
	service *service
	held    types.UID
	began   chan publication
	release chan struct{}
}

func (s *slow) RoundTrip(r *http.Request) (*http.Response, error) {
	var p publication
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		return nil, err
	}
	s.began <- p
	if p.Object.UID == s.held {
		<-s.release
	}
	return &http.Response{StatusCode: s.service.take(p), Body: http.NoBody}, nil
}

// sent is a service that gets the first request, and answers all.
type sent chan *http.Request

func (s sent) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case s <- r:
	default:
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// TestPage: the program is on one page.
func TestPage(t *testing.T) {
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(program), "\n"); n > 125 {
		t.Errorf("main.go has %d lines, want at most 125", n)
	}
}
