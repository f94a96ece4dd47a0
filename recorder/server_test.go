package recorder_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/recorder"
)

// answers tells of each answer that the API server gives to a recorder.
type answers struct {
	recorder.Client
	got chan error
}

func (a answers) Create(ctx context.Context, event *eventsv1.Event, o metav1.CreateOptions) (*eventsv1.Event, error) {
	out, err := a.Client.Create(ctx, event, o)
	a.got <- err
	return out, err
}

func (a answers) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*eventsv1.Event, error) {
	out, err := a.Client.Patch(ctx, name, pt, data, o, sub...)
	a.got <- err
	return out, err
}

// serverRecorder writes to the real API server with config.
func serverRecorder(t *testing.T, config *rest.Config) (*recorder.Recorder, chan error) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(config)
	got := make(chan error, 100)
	return &recorder.Recorder{
		Controller: "example.com/copier",
		Client: func(ns string) recorder.Client {
			return answers{client.EventsV1().Events(ns), got}
		},
		Interval: time.Minute, StopTimeout: 20 * time.Second,
	}, got
}

func await(t *testing.T, answers chan error) error {
	t.Helper()
	select {
	case err := <-answers:
		return err
	case <-time.After(time.Minute):
		t.Fatal("no request in a minute")
		return nil
	}
}

// eventsAbout reads the Events about an object, as kubectl describe does.
func eventsAbout(t *testing.T, object corev1.ObjectReference) []eventsv1.Event {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(testserver.Config(t))
	ns := object.Namespace
	if ns == "" {
		ns = "default"
	}
	list, err := client.EventsV1().Events(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var found []eventsv1.Event
	for _, e := range list.Items {
		if e.Regarding.UID == object.UID && e.Regarding.Name == object.Name {
			found = append(found, e)
		}
	}
	return found
}

// The API server has one Event for what happened often, with the right count, also
// after the Event was removed. Proves RE1.
func TestServerSeries(t *testing.T) {
	ns := testserver.Namespace(t)
	config, requests := testserver.Counted(t)
	r, got := serverRecorder(t, config)
	object := recorder.Reference(&metav1.ObjectMeta{Namespace: ns, Name: "a", UID: "uid-a"}, configMapKind)
	related := recorder.Reference(&metav1.ObjectMeta{Namespace: ns, Name: "b", UID: "uid-b"}, configMapKind)
	happens := func(times int) {
		var wg sync.WaitGroup
		for range times {
			wg.Go(func() { r.Event(object, related, corev1.EventTypeWarning, "Copied", "Copy", "copied") })
		}
		wg.Wait()
	}

	stop := runEvents(t, t.Context(), r)
	start := time.Now()
	happens(1)
	if err := await(t, got); err != nil {
		t.Fatal(err)
	}
	happens(999)
	stop() // writes the 999
	events := eventsAbout(t, object)
	if len(events) != 1 {
		t.Fatalf("%d Events, want 1", len(events))
	}
	e := events[0]
	if e.Series == nil || e.Series.Count != 1000 {
		t.Errorf("series = %v, want a count of 1000", e.Series)
	}
	if at := e.EventTime.Time; at.Before(start.Add(-time.Second)) || e.Series.LastObservedTime.Time.Before(at) {
		t.Errorf("eventTime %v and lastObservedTime %v, want them after %v in this order", at, e.Series.LastObservedTime, start)
	}
	if diff := cmp.Diff(&related, e.Related); diff != "" {
		t.Errorf("related (-want +got):\n%s", diff)
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	wantCounts(t, r, recorder.Counts{Written: 1, Deduplicated: 999})

	// The Event is removed, as it is after an hour. The series goes on in the next Run.
	client := kubernetes.NewForConfigOrDie(testserver.Config(t)).EventsV1().Events(ns)
	if err := client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	happens(2)
	stop = runEvents(t, t.Context(), r)
	happens(3)
	stop()
	if events := eventsAbout(t, object); len(events) != 1 || events[0].Series == nil || events[0].Series.Count != 1005 {
		t.Errorf("Events = %v, want one with a count of 1005", events)
	}
	wantCounts(t, r, recorder.Counts{Written: 1, Deduplicated: 1004})
}

// TestServerValidation tests that the API server accepts the longest and strangest texts,
// which Event makes valid.
func TestServerValidation(t *testing.T) {
	ns := testserver.Namespace(t)
	long := strings.Repeat("ä", 5000)
	uid := types.UID(ns) // no other test's
	for _, tt := range []struct {
		name                 string
		object               corev1.ObjectReference
		reason, action, note string
		instance, controller string
	}{
		{name: "long text", object: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: ns, Name: "a"}, reason: long, action: "x" + long, note: "x" + long, instance: long},
		{name: "no text", object: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: ns, Name: "b"}, reason: "\xff", action: "\xff", note: "\xff\x00\n", instance: "\xff"},
		{name: "empty note", object: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: ns, Name: "c"}, reason: "R", action: "A"},
		{name: "longest name", object: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: ns, Name: strings.Repeat("a", 253)}, reason: "R", action: "A"},
		{name: "name for an Event", object: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: ns, Name: strings.Repeat("a", 236)}, reason: "R", action: "A"},
		{name: "cluster-scoped", object: corev1.ObjectReference{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "system:node"}, reason: "R", action: "A"},
		{name: "long controller", object: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: ns, Name: "d"}, reason: "R", action: "A",
			controller: strings.Repeat("a.", 90) + "io/" + strings.Repeat("c", 63)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, got := serverRecorder(t, testserver.Config(t))
			r.Instance = tt.instance
			if tt.controller != "" {
				r.Controller = tt.controller
			}
			tt.object.UID = uid
			r.Event(tt.object, corev1.ObjectReference{}, corev1.EventTypeNormal, tt.reason, tt.action, tt.note)
			r.Event(tt.object, corev1.ObjectReference{}, corev1.EventTypeNormal, tt.reason, tt.action, tt.note)
			stop := runEvents(t, t.Context(), r)
			if err := await(t, got); err != nil {
				t.Errorf("create = %v", err)
			}
			r.Event(tt.object, corev1.ObjectReference{}, corev1.EventTypeNormal, tt.reason, tt.action, tt.note)
			stop()
			if err := await(t, got); err != nil {
				t.Errorf("patch = %v", err)
			}
			events := eventsAbout(t, tt.object)
			if len(events) != 1 || events[0].Series == nil || events[0].Series.Count != 3 {
				t.Fatalf("Events = %v, want one with a count of 3", events)
			}
			if got := len(events[0].Note); len(tt.note) > 1024 && got < 1023 {
				t.Errorf("the note has %d bytes, want it cut at 1024", got)
			}
		})
	}
}

// What the API server refuses is dropped with its reason, and keeps no other Event from
// being written. Proves RE3.
func TestServerRefusals(t *testing.T) {
	admin := kubernetes.NewForConfigOrDie(testserver.Config(t))
	good := testserver.Namespace(t)
	// A finalizer keeps a namespace terminating until the end of the test.
	ns, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	closing := ns.Name
	keep, err := admin.CoreV1().ConfigMaps(closing).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "keep", Finalizers: []string{"example.com/keep"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := admin.CoreV1().ConfigMaps(closing).Patch(ctx, keep.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	if err := admin.CoreV1().Namespaces().Delete(t.Context(), closing, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// A user that may write Events into one namespace.
	user := "writer-of-" + good
	if _, err := admin.RbacV1().Roles(good).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "events"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.RbacV1().RoleBindings(good).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "events"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "events"},
		Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: user}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	limited := testserver.Config(t)
	limited.Impersonate = rest.ImpersonationConfig{UserName: user}

	for _, tt := range []struct {
		name      string
		config    *rest.Config
		namespace string
		reason    string
	}{
		{name: "terminating", config: testserver.Config(t), namespace: closing, reason: "gone"},
		{name: "no namespace", config: testserver.Config(t), namespace: "not-" + good, reason: "gone"},
		{name: "no role", config: limited, namespace: "default", reason: "forbidden"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, got := serverRecorder(t, tt.config)
			logs := testlog.New()
			stop := runEvents(t, logs.Context(t.Context()), r)
			bad := recorder.Reference(&metav1.ObjectMeta{Namespace: tt.namespace, Name: "a", UID: "uid-a"}, configMapKind)
			fine := recorder.Reference(&metav1.ObjectMeta{Namespace: good, Name: "a", UID: types.UID(tt.name)}, configMapKind)
			for i := range 3 {
				r.Event(bad, corev1.ObjectReference{}, corev1.EventTypeNormal, "Copied", "Copy", fmt.Sprint("copy ", i))
				if err := await(t, got); err == nil {
					t.Error("the write into a namespace that refuses it succeeded")
				}
			}
			r.Event(fine, corev1.ObjectReference{}, corev1.EventTypeNormal, "Copied", "Copy", "copied")
			if err := await(t, got); err != nil {
				t.Errorf("create in another namespace = %v", err)
			}
			if c := r.Counts(); c.Dropped[tt.reason] != 3 {
				t.Errorf("Counts = %v before the stop, want 3 dropped as %s and none to be tried again", c, tt.reason)
			}
			stop()
			wantCounts(t, r, recorder.Counts{Written: 1, Dropped: map[string]uint64{tt.reason: 3}})
			if n := len(eventsAbout(t, fine)); n != 1 {
				t.Errorf("%d Events in another namespace, want 1", n)
			}
			if lines := logs.Find("Dropped Events"); len(lines) == 0 || lines[0].Values["err"] == nil || lines[0].Values["reason"] != tt.reason {
				t.Errorf("log = %v, want a line about the drops with their error", lines)
			}
		})
	}
}
