package integration_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

// TestServerLifecycle runs the life of a website, and compares the requests with the
// rights of Rules.
func TestServerLifecycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	listen, err := lab.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	r := w.replica("-listen", listen)
	w.start(r)
	w.leader("")
	w.create("blog")
	w.awaitReady("blog")
	for path, want := range map[string]string{"/readyz": "", "/livez": "", "/metrics": `controller_reconcile_total{controller="websites",result="success"}`} {
		resp, err := http.Get("http://" + listen + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s returned %d and %q, %v, want 200 and %q", path, resp.StatusCode, body, err, want)
		}
	}

	// A deleted child comes back, a changed one is repaired, and an edit is applied.
	if err := w.kube.CoreV1().Services(namespace).Delete(t.Context(), "blog", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.kube.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "blog", types.MergePatchType, []byte(`{"data":{"HOST":"else"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.awaitReady("blog")
	w.edit("blog", `{"spec":{"host":"www.example.com","image":"example.com/site:2","replicas":3}}`)
	w.awaitReady("blog")

	// The cleanup waits for the service.
	w.dns.Fail(http.StatusServiceUnavailable)
	if err := w.sites.Delete(t.Context(), "blog", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.AwaitOutput(t.Context(), limit, "503"); err != nil {
		t.Fatal(err)
	}
	if got, err := w.sites.Get(t.Context(), "blog", metav1.GetOptions{}); err != nil || len(w.dns.Records()) != 1 {
		t.Errorf("website = %v, %v, records = %v, want both kept while the service is down", got, err, w.dns.Records())
	}
	w.dns.Fail(0)
	w.delete("blog")
	w.childrenGone()

	// It comes back, and nothing is left of the one before.
	w.create("blog")
	w.awaitReady("blog")
	w.await(func() error {
		if reasons := w.events(); !reasons["Created"] || !reasons["Changed"] {
			return fmt.Errorf("reasons of Events = %v, want Created and Changed", reasons)
		}
		return nil
	})
	begin := time.Now()
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	t.Logf("the idle operator stopped within %v", time.Since(begin))
	w.rulesMatch()
}

// TestServerFinalizerPolicy: with config/finalizer.yaml the operator adds no
// finalizer, and removes it.
func TestServerFinalizerPolicy(t *testing.T) {
	t.Parallel()
	testserver.Since(t, "1.36", "it does not serve MutatingAdmissionPolicy in v1")
	w := newWorld(t)
	if err := lab.Install(t.Context(), w.admin, os.DirFS("../config"), "finalizer.yaml"); err != nil {
		t.Fatal(err)
	}
	// When the server has read a policy and the schema of the kind, nothing tells. Try until it
	// adds.
	for deadline := time.Now().Add(limit); ; {
		trial := &v1.Website{ObjectMeta: metav1.ObjectMeta{Name: "trial"}, Spec: v1.WebsiteSpec{Image: "example.com/site:1", Host: "trial.example.com", Replicas: 1}}
		trial, err := w.sites.Create(t.Context(), trial, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && finalizer.Has(trial, controller.Finalizer) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the policy adds no finalizer: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	r := w.run()
	w.create("blog")
	w.awaitReady("blog")
	for _, op := range w.Ops() {
		// LiveRead asks for dry runs.
		if op.Method == http.MethodPatch && strings.HasSuffix(op.Path, "/websites/blog") && !strings.Contains(op.Query, "dryRun") {
			t.Errorf("%s: %s", op, op.Body)
		}
	}
	w.delete("blog")
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
}

func (w *world) edit(site, patch string) {
	w.t.Helper()
	if _, err := w.sites.Patch(w.t.Context(), site, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// rulesMatch checks that each request is allowed by the operator's Rules, and that each
// verb of them was used.
func (w *world) rulesMatch() {
	w.t.Helper()
	op, err := controller.New(&rest.Config{Host: "https://no-request"}, operator.Options{Name: name, LeaseNamespace: systemNamespace}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	objects, leases := op.Rules()
	rights := map[string]bool{} // whether the right was used
	for _, rule := range slices.Concat(objects, leases) {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				rights[right(rule.APIGroups[0], resource, verb)] = false
			}
		}
	}
	for _, op := range w.Ops() {
		group, resource := lab.Resource(op.Path)
		if strings.HasPrefix(resource, "/") {
			continue // discovery, which every user may read
		}
		for _, verb := range verbs(op) {
			if _, ok := rights[right(group, resource, verb)]; !ok {
				w.t.Errorf("%s needs %s, which Rules lacks", op, right(group, resource, verb))
			}
			rights[right(group, resource, verb)] = true
		}
	}
	for right, used := range rights {
		// The admission plugin OwnerReferencesPermissionEnforcement asks for it.
		if !used && right != "update websites/finalizers.web.example.com" {
			w.t.Errorf("Rules allows %s, which the operator did not use", right)
		}
	}
}

func right(group, resource, verb string) string {
	return verb + " " + schema.GroupResource{Group: group, Resource: resource}.String()
}

// verbs returns the verbs of RBAC that a request needs.
func verbs(op lab.Op) []string {
	switch op.Method {
	case http.MethodPost:
		return []string{"create"}
	case http.MethodPut:
		return []string{"update"}
	case http.MethodPatch:
		if op.Status == http.StatusCreated {
			return []string{"patch", "create"} // an apply that created
		}
		return []string{"patch"}
	case http.MethodDelete:
		return []string{"delete"}
	}
	switch _, resource := lab.Resource(op.Path); {
	case strings.Contains(op.Query, "sendInitialEvents=true"):
		return []string{"list", "watch"} // a list in the form of a watch; the informers fall back to a list
	case strings.Contains(op.Query, "watch=true"):
		return []string{"watch"}
	case strings.HasSuffix(op.Path, "/"+resource):
		return []string{"list"}
	}
	return []string{"get"}
}

// TestServerKill kills the operator at each write in a website's life, before the write
// reaches the server or before the operator gets the response, and starts it again. Each life
// must end the same.
func TestServerKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.replica("-lease-namespace", "") // the next process starts at once
	w.start(r)

	var (
		mu      sync.Mutex // guards the variables below and r.Process
		left    = -1       // writes until the kill; negative means none
		late    bool       // kill after the server's response
		current string     // the request at which the process was killed
		restart = make(chan struct{}, 1)
	)
	at := func(op lab.Op, isLate bool) bool {
		if !op.Write || strings.Contains(op.Path, "/events") {
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if left > 0 && !isLate {
			left--
		}
		if left != 0 || late != isLate {
			return true
		}
		left = -1
		r.Kill()
		current = op.String()
		restart <- struct{}{}
		return false
	}
	w.Hook(func(op lab.Op) bool { return at(op, false) }, func(op lab.Op) bool { return at(op, true) })
	supervised := make(chan struct{})
	go func() { // starts the process again, as the kubelet does
		defer close(supervised)
		for range restart {
			mu.Lock()
			w.start(r)
			mu.Unlock()
		}
	}()
	defer func() {
		w.Hook(nil, nil)
		close(restart)
		<-supervised
	}()

	writes := 0 // at which it was killed
	moments := lab.Moments(t)
	for moment := 0; ; moment++ {
		write, after := moments(moment)
		mu.Lock()
		left, late, current = write, after, ""
		mu.Unlock()
		site := fmt.Sprintf("kill-%d", moment)
		w.create(site)
		w.awaitReady(site)
		w.delete(site)
		mu.Lock()
		at := current
		left = -1
		mu.Unlock()
		if at == "" {
			break // this life had no more writes
		}
		if t.Failed() {
			t.Fatalf("killed at %s", at)
		}
		writes = write
		t.Logf("killed at %s", at)
	}
	w.childrenGone()
	// The finalizer, three children, one to three writes of the status, and the finalizer's
	// removal.
	if writes < 5 { // make test can leave out the last of six
		t.Errorf("the last kill was at write %d, want at least 5", writes)
	}
}

// TestServerStop sends SIGTERM during a call that takes 12s: it ends, then the Lease is
// released, and the process exits with 0.
func TestServerStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run()
	w.create("blog")
	w.awaitReady("blog")

	// Two slow services: 4s in the API server, 8s in the DNS service.
	w.dns.Slow(8 * time.Second)
	begun := make(chan time.Time, 1)
	var held atomic.Bool
	w.Hook(func(op lab.Op) bool {
		if op.Write && !op.Lease && held.CompareAndSwap(false, true) {
			begun <- time.Now()
			<-time.After(4 * time.Second) // the slow service
		}
		return true
	}, nil)
	w.edit("blog", `{"spec":{"host":"www.example.com"}}`)
	call := <-begun
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	stop := time.Since(call)
	t.Logf("the operator stopped %v after the begin of the call", stop)
	if stop < 12*time.Second || stop > 28*time.Second {
		t.Errorf("the operator stopped %v after the begin of the call, want the 12s of the call, and at most the grace period of 28s", stop)
	}
	w.dns.Slow(0)
	w.await(func() error { return w.matches("blog") }) // the call has ended with its last write
	if holder := w.holder(); holder != "" {
		t.Errorf("the Lease is held by %q, want it released", holder)
	}
	if strings.Contains(r.Output(), "context canceled") {
		t.Errorf("the call was cancelled:\n%s", r.Tail(20))
	}
	if strings.Contains(r.Output(), "A request is not declared") {
		t.Errorf("the operator sends a request that it does not declare by Writes:\n%s", r.Output())
	}
}

// TestServerHandOver stops one replica of two by SIGTERM during a reconcile, and the next
// one by SIGKILL.
func TestServerHandOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.replica(), w.replica()
	w.start(a)
	first := w.leader("")
	w.start(b)
	w.create("blog")
	w.awaitReady("blog")

	signalled := make(chan error, 1)
	var armed atomic.Bool
	armed.Store(true)
	w.Hook(func(op lab.Op) bool {
		if op.Write && !op.Lease && !strings.Contains(op.Path, "/events") && armed.CompareAndSwap(true, false) {
			go func() { signalled <- a.Stop() }()
		}
		return true
	}, nil)
	w.create("shop")
	if err := <-signalled; err != nil {
		t.Fatal(err)
	}
	w.Hook(nil, nil)
	second := w.leader(first)
	w.awaitReady("shop")
	var release, acquire time.Time
	w.await(func() (err error) { // the Lease is read past the proxy, which records it later
		release, acquire, err = w.HandOver()
		return err
	})
	for _, op := range w.Writes(release) {
		if op.At.Before(acquire) && !strings.Contains(op.Path, "/events") {
			t.Errorf("%s between the release of the Lease and its acquisition", op)
		}
	}
	t.Logf("hand-over took %v from release to acquisition", acquire.Sub(release))
	if gap := acquire.Sub(release); gap > 10*time.Second { // usually milliseconds
		t.Errorf("hand-over took %v: the standby waited until the Lease expired, 15s after its last renewal", gap)
	}

	b.Kill()
	w.start(a)
	w.leader(second)
	w.edit("blog", `{"spec":{"host":"www.example.com"}}`)
	w.awaitReady("blog")
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
	w.await(func() error {
		if holder := w.holder(); holder != "" {
			return errors.New("the Lease is held by " + holder)
		}
		return nil
	})
}
