package controller_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/crd"
	v1 "github.com/controllerkit/controllerkit/examples/backup/api/v1"
	"github.com/controllerkit/controllerkit/examples/backup/config"
	"github.com/controllerkit/controllerkit/examples/backup/store"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var kills = flag.Int("kills", 6, "`number` of kills of TestServerKill")

// A killer ends the process of the operator with SIGKILL at random requests, to the API server or to the store, before
// the request is handled or before the operator gets the response, and starts it again.
type killer struct {
	start func() (*lab.Process, error)

	mu      sync.Mutex
	process *lab.Process
	left    int  // requests until the kill; negative means none
	writes  bool // count only requests that can write
	late    bool // after the request is handled
	kills   int
	where   map[string]int // kills by the kind of request
	again   chan struct{}  // receives a value after each kill
}

// at is called before and after each request. If it returns false, the request or its response is lost.
func (k *killer) at(what string, late bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left < 0 || late != k.late || k.writes && strings.HasPrefix(what, http.MethodGet) {
		return true
	}
	if k.left--; k.left >= 0 {
		return true
	}
	k.process.Kill()
	k.kills++
	k.where[what]++
	k.again <- struct{}{}
	return false
}

// run starts the process after each kill until there are enough of them, or ctx is done.
func (k *killer) run(ctx context.Context, enough int) error {
	for n := 0; ; n++ {
		k.mu.Lock()
		var err error
		if k.process, err = k.start(); err == nil && n < enough {
			k.left, k.writes, k.late = rand.IntN(30), rand.IntN(3) > 0, rand.IntN(2) == 0
			if k.writes {
				k.left /= 3
			}
		}
		k.mu.Unlock()
		if err != nil || n == enough {
			return err
		}
		select {
		case <-k.again:
		case <-k.process.Ended():
			if !k.killed() {
				return fmt.Errorf("the operator ended: %s", k.process.Tail(20))
			}
			<-k.again
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (k *killer) killed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.left < 0
}

// A watchedStore is a store that counts the snapshots of each token.
type watchedStore struct {
	store.Server
	killer *killer

	mu     sync.Mutex
	tokens map[string]int
}

func (s *watchedStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what := r.Method + " snapshots"
	if !s.killer.at(what, false) {
		panic(http.ErrAbortHandler)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	response := httptest.NewRecorder()
	s.Server.ServeHTTP(response, r)
	if r.Method == http.MethodPost {
		var snapshot store.Snapshot
		s.mu.Lock()
		if json.Unmarshal(body, &snapshot) == nil && response.Code == http.StatusCreated {
			s.tokens[snapshot.Token]++
		}
		s.mu.Unlock()
	}
	if !s.killer.at(what, true) {
		panic(http.ErrAbortHandler)
	}
	for key, values := range response.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(response.Code)
	_, _ = w.Write(response.Body.Bytes()) // an error means that the client is gone
}

// TestServerKill kills the operator at random requests while backups come, change and go, with the store whose
// creations are not idempotent: no snapshot is made twice, none is left over, and each status is right in the end.
func TestServerKill(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it waits for a lost creation of a snapshot to show, which -short leaves out")
	}
	var w struct {
		lab.Signal
		*lab.Wire
	}
	w.Wire = lab.NewWire(t)
	admin := testserver.Own(t).Config()
	// The user's shortest interval is a minute. Here it is a second.
	definition, err := config.Files.ReadFile("crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	short := strings.Replace(string(definition), "duration('1m')", "duration('1s')", 1)
	if short == string(definition) {
		t.Fatal("crd.yaml has no rule for the shortest interval")
	}
	if err := lab.Install(t.Context(), admin, fstest.MapFS{"crd.yaml": {Data: []byte(short)}}, "crd.yaml"); err != nil {
		t.Fatal(err)
	}
	if err := lab.Install(t.Context(), admin, config.Files, "rbac.yaml"); err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(admin)
	if _, err := kube.CoreV1().ConfigMaps(systemNamespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: settingsName}, Data: map[string]string{"namespaces": "default"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := crd.New[*v1.Backup](admin, v1.GroupVersion.WithKind("Backup"), "backups")
	if err != nil {
		t.Fatal(err)
	}
	backups, jobs := all.Namespace("default"), kube.BatchV1().Jobs("default")

	// A controller of Jobs, which fails each tenth one.
	factory := informers.NewSharedInformerFactory(kube, 0)
	running, stop := context.WithCancel(context.WithoutCancel(t.Context())) // which ends before Cleanup
	defer func() {
		stop()
		factory.Shutdown()
	}()
	finish := func(object any) {
		w.Notify()
		job, ok := object.(*batchv1.Job)
		if !ok || len(job.Status.Conditions) > 0 || job.DeletionTimestamp != nil {
			return
		}
		job = job.DeepCopy()
		failure := ""
		if rand.IntN(10) == 0 {
			failure = "no space left"
		}
		finishJob(job, failure)
		if _, err := jobs.UpdateStatus(running, job, metav1.UpdateOptions{}); err != nil && running.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	if _, err := factory.Batch().V1().Jobs().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: finish, UpdateFunc: func(_, object any) { finish(object) }, DeleteFunc: func(any) { w.Notify() },
	}); err != nil {
		t.Fatal(err)
	}
	source := all.Informer(0, nil).Informer()
	if _, err := source.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { w.Notify() }, UpdateFunc: func(any, any) { w.Notify() }, DeleteFunc: func(any) { w.Notify() },
	}); err != nil {
		t.Fatal(err)
	}
	var watching sync.WaitGroup
	watching.Go(func() { source.RunWithContext(running) })
	defer watching.Wait()
	defer stop()
	factory.StartWithContext(running)

	// The process, its proxy and its store.
	bin := filepath.Join(t.TempDir(), "backup")
	if err := testprocess.Build(t.Context(), bin, ".."); err != nil {
		t.Fatal(err)
	}
	k := &killer{left: -1, where: map[string]int{}, again: make(chan struct{}, 1)}
	what := func(op lab.Op) string {
		_, resource, ok := strings.Cut(op.Path, "/namespaces/default/")
		if !ok {
			resource = op.Path[strings.LastIndex(op.Path, "/")+1:]
		}
		resource, _, _ = strings.Cut(resource, "/")
		return op.Method + " " + resource
	}
	w.Hook(func(op lab.Op) bool { return k.at(what(op), false) }, func(op lab.Op) bool { return k.at(what(op), true) })
	proxy, err := lab.Proxy(admin, w.Before, w.After)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	service := &watchedStore{killer: k, tokens: map[string]int{}}
	server := httptest.NewServer(service)
	defer server.Close()
	kubeconfig, err := lab.LimitedKubeconfig(t.Context(), admin, systemNamespace, name, t.TempDir(), proxy)
	if err != nil {
		t.Fatal(err)
	}
	k.start = func() (*lab.Process, error) {
		return lab.StartProcess(bin, "-kubeconfig", kubeconfig, "-store", server.URL, "-listen", "127.0.0.1:0")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(*kills)*10*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- k.run(ctx, *kills) }()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.process == nil {
			return
		}
		if t.Failed() {
			t.Logf("the operator's last lines:\n%s", k.process.Tail(25))
		}
		k.process.Kill()
	}()

	// Users create, change and delete backups until there are enough kills.
	created := 0
	var live []*v1.Backup
	users := time.NewTicker(time.Second)
	defer users.Stop()
	for killing := true; killing; {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			killing = false
		case <-users.C:
		}
		if len(live) < 5 {
			b := newBackup("default", fmt.Sprintf("b-%d", created), int32(1+rand.IntN(3)))
			b.Spec.Interval.Duration = time.Duration(2+rand.IntN(4)) * time.Second
			if b, err = backups.Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			live, created = append(live, b), created+1
			continue
		}
		n := rand.IntN(len(live))
		if rand.IntN(3) > 0 {
			patch := fmt.Sprintf(`{"spec":{"retention":%d}}`, 1+rand.IntN(3))
			if _, err := backups.Patch(t.Context(), live[n].Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := backups.Delete(t.Context(), live[n].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		live = append(live[:n], live[n+1:]...)
	}

	// In the end no Job is due, and the process lives.
	for _, b := range live {
		if _, err := backups.Patch(t.Context(), b.Name, types.MergePatchType, []byte(`{"spec":{"interval":"8760h"}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await := func(cond func() error) {
		t.Helper()
		if err := w.Await(t.Context(), limit, cond); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range live {
		await(func() error {
			b, err := backups.Get(t.Context(), b.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return service.matches(t.Context(), b, jobs)
		})
	}
	for _, b := range live {
		if err := backups.Delete(t.Context(), b.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await(func() error {
		list, err := backups.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d backups are left", len(list.Items)))
		}
		if left := service.Snapshots(""); len(left) > 0 {
			return fmt.Errorf("%d snapshots are left over", len(left))
		}
		left, err := jobs.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(left.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d Jobs are left", len(left.Items)))
		}
		return nil
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	service.mu.Lock()
	defer service.mu.Unlock()
	for token, n := range service.tokens {
		if n > 1 {
			t.Errorf("%d snapshots of the token %s", n, token)
		}
	}
	if k.kills != *kills || len(service.tokens) == 0 {
		t.Errorf("%d kills and %d snapshots, want %d kills and some snapshots", k.kills, len(service.tokens), *kills)
	}
	t.Logf("%d kills, %d backups, %d snapshots; killed at %v", k.kills, created, len(service.tokens), k.where)
	if err := k.process.Stop(); err != nil {
		t.Error(err)
	}
	if strings.Contains(k.process.Output(), "DATA RACE") {
		t.Errorf("the race detector found a race:\n%s", k.process.Output())
	}
}

// matches returns an error unless each successful Job has its snapshot, and the status of the backup describes the store.
func (s *watchedStore) matches(ctx context.Context, b *v1.Backup, jobs interface {
	List(ctx context.Context, opts metav1.ListOptions) (*batchv1.JobList, error)
}) error {
	list, err := jobs.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, job := range list.Items {
		if c := job.Status.Conditions; metav1.IsControlledBy(&job, b) && job.DeletionTimestamp == nil &&
			len(c) > 0 && c[len(c)-1].Type == batchv1.JobComplete && external.ID(&job, snapshotAnnotation) == "" {
			return fmt.Errorf("the Job %s has no snapshot", job.Name)
		}
	}
	stored := s.Snapshots(string(b.UID))
	if len(stored) > int(b.Spec.Retention) || len(stored) != len(b.Status.Snapshots) {
		return fmt.Errorf("%s: %d snapshots, %d in the status, want at most %d", b.Name, len(stored), len(b.Status.Snapshots), b.Spec.Retention)
	}
	for i, snapshot := range stored { // the oldest first
		if got := b.Status.Snapshots[len(stored)-1-i].ID; got != snapshot.ID {
			return fmt.Errorf("%s: the status has the snapshot %s, the store %s", b.Name, got, snapshot.ID)
		}
	}
	ready := meta.FindStatusCondition(b.Status.Conditions, "Ready")
	if ready == nil || b.Status.ObservedGeneration != b.Generation || ready.ObservedGeneration != b.Generation || strings.Contains(ready.Message, "snapshot") {
		return fmt.Errorf("%s: generation %d, observed %d, condition %+v", b.Name, b.Generation, b.Status.ObservedGeneration, ready)
	}
	return nil
}
