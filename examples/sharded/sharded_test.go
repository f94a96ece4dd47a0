package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/examples/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

const (
	objects  = 40
	patience = 2 * time.Minute // for what has an event; a slow machine needs it
)

// A service records the publications, and judges the owners of each object: a replica that
// sent later than the first request of the next term has overlapped with it.
type service struct {
	mu       sync.Mutex
	last     map[types.UID]publication // of the highest term
	first    map[types.UID]time.Time   // Sent of that term's first
	terms    int
	total    int
	overlaps []string
	changed  chan struct{} // closed by the next publication
}

func newService() *service {
	return &service{last: map[types.UID]publication{}, first: map[types.UID]time.Time{}, changed: make(chan struct{})}
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
		ok, changed, total := len(s.last) == objects && wanted(s.last), s.changed, s.total
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
			t.Fatalf("%s: not after %v: %v", what, patience, s.last)
		}
	}
}

// from reports whether the replicas have published something last, or all.
func from(last map[types.UID]publication, all bool, replicas ...string) bool {
	n := 0
	for _, p := range last {
		for _, r := range replicas {
			if p.Replica == r {
				n++
			}
		}
	}
	return n == len(last) || n > 0 && !all
}

// TestServerSharded runs replicas of the program as processes: they join, one is frozen until
// the others have its shards, one is killed, one is stopped. The service sees each object's
// last version, and no two owners of an object.
func TestServerSharded(t *testing.T) {
	cfg := testserver.Config(t)
	ns := testserver.Namespace(t)
	client := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(ns)
	for i := range objects + 3 {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i), Labels: map[string]string{"publish": "yes"}}, Data: map[string]string{"version": "1"}}
		if i >= objects {
			m.Labels = nil
		}
		if _, err := client.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	log := newService()
	server := httptest.NewServer(log)
	t.Cleanup(server.Close)
	bin := filepath.Join(t.TempDir(), "sharded")
	if out, err := exec.Command("go", "build", "-race", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("KUBECONFIG", testprocess.Kubeconfig(t, cfg))
	start := func() (*lab.Process, string) {
		t.Helper()
		p, err := lab.StartProcess(bin, "-url", server.URL, "-namespace", ns, "-shards", "8", "-lease-duration", "6s")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.Kill()
			if t.Failed() || strings.Contains(p.Output(), "DATA RACE") {
				t.Errorf("a replica:\n%s", p.Tail(40))
			}
		})
		return p, fmt.Sprint("pid-", p.OS().Pid)
	}
	change := func(version string) {
		t.Helper()
		for i := range objects {
			if _, err := client.Patch(t.Context(), fmt.Sprint("m", i), types.MergePatchType, []byte(`{"data":{"version":"`+version+`"}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	has := func(last map[types.UID]publication, version string) bool {
		for _, p := range last {
			if p.Object.Data["version"] != version {
				return false
			}
		}
		return true
	}

	a, nameA := start()
	b, nameB := start()
	c, nameC := start()
	log.await(t, "three replicas", func(last map[types.UID]publication) bool {
		return from(last, false, nameA) && from(last, false, nameB) && from(last, false, nameC)
	})
	if err := testprocess.Freeze(a.OS()); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("a process cannot be stopped on this system")
	} else if err != nil {
		t.Fatal(err)
	}
	change("2")
	log.await(t, "one is frozen", func(last map[types.UID]publication) bool { return from(last, true, nameB, nameC) && has(last, "2") })
	if err := testprocess.Thaw(a.OS()); err != nil {
		t.Fatal(err)
	}
	log.await(t, "it goes on", func(last map[types.UID]publication) bool { return from(last, false, nameA) })
	b.Kill()
	log.await(t, "one is killed", func(last map[types.UID]publication) bool { return from(last, true, nameA, nameC) })
	_, nameD := start()
	log.await(t, "one joins", func(last map[types.UID]publication) bool { return from(last, false, nameD) })
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	change("3")
	log.await(t, "one is stopped", func(last map[types.UID]publication) bool { return from(last, true, nameA, nameD) && has(last, "3") })

	log.mu.Lock()
	defer log.mu.Unlock()
	for _, o := range log.overlaps {
		t.Error("two owners: ", o)
	}
	t.Logf("%d publications in %d terms of %d objects", log.total, log.terms, objects)
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
	if out, err := exec.Command("go", "build", "-race", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
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
