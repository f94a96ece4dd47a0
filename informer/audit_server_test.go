package informer_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var churn = flag.Duration("churn", 3*time.Second, "how long TestServerAudit changes objects")

// losing is a transport that drops the watch events of objects named after their type:
// lost-added-1 loses the event ADDED.
type losing struct{ next http.RoundTripper }

func (l losing) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err == nil && req.URL.Query().Get("watch") != "" {
		resp.Body = &lossy{ReadCloser: resp.Body, lines: bufio.NewReaderSize(resp.Body, 1<<20)}
	}
	return resp, err
}

type lossy struct {
	io.ReadCloser
	lines *bufio.Reader
	rest  bytes.Buffer
}

func (l *lossy) Read(p []byte) (int, error) {
	for l.rest.Len() == 0 {
		line, err := l.lines.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		var event struct {
			Type   string
			Object metav1.PartialObjectMetadata
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return 0, err
		}
		if !strings.HasPrefix(event.Object.Name, "lost-"+strings.ToLower(event.Type)+"-") {
			l.rest.Write(line)
		}
	}
	return l.rest.Read(p)
}

// TestServerAudit: while other objects change, an audit finds every event that a proxy has
// lost, and nothing else.
//
// Proves I5.
func TestServerAudit(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]configMapInformers{"typed": configMapsOf, "compact": compactConfigMapsOf} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testServerAudit(t, of)
		})
	}
}

func testServerAudit(t *testing.T, of configMapInformers) {
	t.Helper()
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	config.QPS = -1
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client := typedClient(t, config).CoreV1().ConfigMaps(namespace)
	lossyConfig := testserver.Config(t)
	lossyConfig.ContentType, lossyConfig.AcceptContentTypes = "application/json", "application/json"
	lossyConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return losing{next} })
	inf := of(t, lossyConfig, namespace)

	var mu sync.Mutex // guards planted and found
	planted, found := map[string]bool{}, map[string]bool{}
	all := make(chan struct{}) // closed when all losses were found
	set, audits := &informer.Set{Timeout: time.Minute, Mutated: func(m informer.Mutation) { t.Errorf("a false report: %v", m) }}, &informer.Audit{Period: time.Second}
	audits.Report = func(d informer.Difference) {
		mu.Lock()
		defer mu.Unlock()
		if !planted[d.Key] {
			t.Errorf("a false report: %v", d)
			return
		}
		if found[d.Key] = true; len(found) == 50 {
			select {
			case <-all:
			default:
				close(all)
			}
		}
	}
	set.Add("configmaps", inf)
	audits.Add("configmaps", inf, metadataClient.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(namespace).List)
	ctx, cancel := context.WithCancel(quiet(t))
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := set.Run(ctx); err != nil {
			t.Errorf("Set.Run() = %v", err)
		}
	})
	select {
	case <-set.HasSyncedChecker().Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("the informer does not sync")
	}
	running.Go(func() {
		if err := audits.Run(ctx); err != nil {
			t.Errorf("Audit.Run() = %v", err)
		}
	})

	var refused atomic.Int64
	var change func(op, name string)
	change = func(op, name string) {
		var err error
		switch op {
		case "create":
			_, err = client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		case "patch":
			_, err = client.Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%d"}}`, time.Now().UnixNano()), metav1.PatchOptions{})
		case "delete":
			err = client.Delete(t.Context(), name, metav1.DeleteOptions{})
		}
		if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError {
			refused.Add(1) // etcd was slow: the write is repeated, whether it was stored or not
			change(op, name)
			return
		}
		if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			t.Errorf("%s %s: %v", op, name, err)
		}
	}
	stop := make(chan struct{})
	var churning sync.WaitGroup
	changes := [4]int{}
	for w := range changes {
		churning.Go(func() {
			pace := time.NewTicker(20 * time.Millisecond) // 200 writes a second in all
			defer pace.Stop()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-pace.C:
				}
				change([]string{"create", "patch", "patch", "delete"}[n%4], fmt.Sprintf("churn-%d-%d", w, n/4%50))
				changes[w]++
			}
		})
	}
	for n := range 50 {
		name := fmt.Sprintf("lost-%s-%d", []string{"added", "modified", "deleted"}[n%3], n)
		mu.Lock()
		planted[namespace+"/"+name] = true
		mu.Unlock()
		change("create", name)
		switch n % 3 {
		case 1:
			change("patch", name)
		case 2:
			change("delete", name)
		}
	}
	select {
	case <-time.After(*churn):
	case <-t.Context().Done():
	}
	select {
	case <-all:
	case <-time.After(5 * time.Minute):
		mu.Lock()
		missed := maps.Clone(planted)
		maps.DeleteFunc(missed, func(key string, _ bool) bool { return found[key] })
		mu.Unlock()
		t.Errorf("the audit does not find %v", missed)
	}
	close(stop)
	churning.Wait()
	t.Logf("%v changes; the server could not store %d at once", changes, refused.Load())
}
