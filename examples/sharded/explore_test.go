package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
)

// TestExplore runs three objects with two replicas many times, each time with a fault at
// another moment. No two owners of an object overlap, and the service gets each version of
// each object. By default it runs a sample of the plans. With EXPLORE_BUDGET, for example
// 10m, it runs plans until that time has passed.
func TestExplore(t *testing.T) {
	t.Parallel()
	options := controllertest.Options{Config: testserver.Config(t), Sample: 12, Parallel: 12, ConvergeTimeout: 90 * time.Second, KeepNamespaces: true}
	if text := os.Getenv("EXPLORE_BUDGET"); text != "" {
		var err error
		if options.Budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("EXPLORE_BUDGET: %v", err)
		}
		options.Sample, options.Parallel = 0, 40 // runs wait most of the time
	}
	controllertest.Explore(t, scenario(), options)
}

// names are the objects of the scenario.
var names = []string{"a", "b", "c"}

func scenario() controllertest.Scenario {
	services := new(sync.Map) // namespace of the run → *service
	var replicas atomic.Int64
	return controllertest.Scenario{
		Name:     "sharded",
		Replicas: 2,
		Pause:    10 * time.Second, // the Lease of a paused replica is lost
		Cloud:    cloud.Options{ChosenIDs: true},
		Start: func(ctx context.Context, config *rest.Config, env *controllertest.Env) error {
			s, _ := services.LoadOrStore(env.Namespace, newService(shard.Ranges{N: 4}))
			group := &shard.Group{
				Namespace: env.Namespace, Name: "sharded", Identity: fmt.Sprint("replica-", replicas.Add(1)), Ranges: shard.Ranges{N: 4},
				LeaseDuration: 9 * time.Second, RenewDeadline: 6 * time.Second, RetryPeriod: time.Second, StartTimeout: patience,
			}
			return run(ctx, config, group, "http://service", &line{env, s.(*service)})
		},
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, client corev1client.ConfigMapInterface, name string) error {
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"publish": "yes"}}, Data: map[string]string{"version": "1"}}
				_, err := client.Create(ctx, m, metav1.CreateOptions{})
				return err
			}),
			step("change", version("2")),
			step("change again", version("3")),
		},
		Converged: published,
		Invariants: []controllertest.Invariant{{Name: "no two owners of an object at a time", Check: func(s *controllertest.State) error {
			for _, r := range s.Cloud() {
				if r.Name == overlap {
					return errors.New(r.Tags[overlap])
				}
			}
			return nil
		}}},
	}
}

// step does something with each object.
func step(what string, do func(ctx context.Context, client corev1client.ConfigMapInterface, name string) error) controllertest.Step {
	return controllertest.Step{Name: what, Do: func(ctx context.Context, config *rest.Config, env *controllertest.Env) error {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		for _, name := range names {
			err = errors.Join(err, do(ctx, client.CoreV1().ConfigMaps(env.Namespace), name))
		}
		return err
	}}
}

func version(v string) func(context.Context, corev1client.ConfigMapInterface, string) error {
	return func(ctx context.Context, client corev1client.ConfigMapInterface, name string) error {
		_, err := client.Patch(ctx, name, types.MergePatchType, []byte(`{"data":{"version":"`+v+`"}}`), metav1.PatchOptions{})
		return err
	}
}

// published returns nil if the service has the present version of each object.
func published(s *controllertest.State) error {
	have := map[string]map[string]string{}
	for _, r := range s.Cloud() {
		have[r.Name] = r.Tags
	}
	for _, name := range names {
		obj := s.Get("configmaps", name)
		if obj == nil {
			continue
		}
		var m corev1.ConfigMap
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &m); err != nil {
			return err
		}
		if want := tags(&m); !maps.Equal(have[name], want) {
			return fmt.Errorf("%s: the service has %v, want %v", name, have[name], want)
		}
	}
	return nil
}

// tags describe the version of an object in the cloud. Versions of the API server differ in
// each run, so the explorer leaves it to published to compare them: the program does nothing for
// a deleted object, of which the service keeps any version.
func tags(m *corev1.ConfigMap) map[string]string {
	return map[string]string{"version": m.ResourceVersion, "uid": string(m.UID)}
}

// overlap is the name of a resource of the cloud that describes two owners.
const overlap = "overlap"

// A line sends publications to the service of a run, with the faults of the plan. After each
// one it copies what the service has to the run's cloud, so that states include it.
type line struct {
	env     *controllertest.Env
	service *service
}

func (l *line) RoundTrip(r *http.Request) (*http.Response, error) {
	var p publication
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		return nil, err
	}
	status := 0
	err := l.env.External(r.Context(), "publish "+p.Object.Name, func(ctx context.Context) error {
		status = l.service.take(p)
		return l.record(ctx, p)
	})
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: http.NoBody}, err
}

// record copies an object to the cloud. The calls of a run do not overlap.
func (l *line) record(ctx context.Context, p publication) error {
	l.service.mu.Lock()
	defer l.service.mu.Unlock()
	m, overlaps := l.service.last[p.Object.UID].Object, l.service.overlaps
	books := l.env.Cloud.Through(nil)
	put := func(name string, tags map[string]string) error {
		err := books.Update(ctx, name, tags)
		if errors.Is(err, cloud.ErrNotFound) {
			_, err = books.Create(ctx, cloud.Resource{Name: name, Tags: tags})
		}
		return err
	}
	if len(overlaps) > 0 {
		return put(overlap, map[string]string{overlap: overlaps[0]})
	}
	if before, err := books.Get(ctx, m.Name); err == nil {
		// The user may have created it again: another object, perhaps of another shard.
		other := l.service.last[types.UID(before.Tags["uid"])].Object
		if n, err := resourceversion.CompareResourceVersion(m.ResourceVersion, other.ResourceVersion); err != nil || n < 0 {
			return err
		}
	}
	return put(m.Name, tags(m))
}
