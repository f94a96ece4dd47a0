package samples_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/internal/samples"
)

// TestChanged: a difference between an object and its copy has the path of its field, and
// what only reads an object makes none.
func TestChanged(t *testing.T) {
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "blue", Labels: map[string]string{"app": "blue"}, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0)), ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "x", FieldsV1: &metav1.FieldsV1{},
			}}},
			Spec: corev1.PodSpec{Priority: new(int32), Containers: []corev1.Container{{Image: "blue:1", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": *resource.NewMilliQuantity(1500, resource.DecimalSI)},
			}}}},
		}
	}
	secret := func() *corev1.Secret {
		return &corev1.Secret{Data: map[string][]byte{"password": []byte("hunter2")}, StringData: map[string]string{}}
	}
	free := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "X", "nan": math.NaN(), "spec": map[string]any{"items": []any{int64(1), "a", nil, true, 1.5}, "none": nil}}}
	}
	for _, tt := range []struct {
		name   string
		obj    runtime.Object
		change func(runtime.Object)
		want   string
		none   bool
	}{
		{name: "nothing, typed", obj: pod(), change: func(runtime.Object) {}, none: true},
		{name: "nothing, unstructured", obj: free(), change: func(runtime.Object) {}, none: true},
		{name: "a quantity is printed", none: true, obj: pod(), change: func(o runtime.Object) {
			list := o.(*corev1.Pod).Spec.Containers[0].Resources.Requests
			q := list["cpu"]
			_ = q.String() // keeps the text in q
			list["cpu"] = q
		}},
		{name: "a time in another location", none: true, obj: pod(), change: func(o runtime.Object) {
			p := o.(*corev1.Pod)
			p.CreationTimestamp.Time = p.CreationTimestamp.In(time.FixedZone("x", 3600))
		}},
		{name: "an unexported field", none: true, obj: &lazy{}, change: func(o runtime.Object) { o.(*lazy).since = time.Now() }},
		{name: "a label changes", want: `.metadata.labels["app"]`, obj: pod(), change: func(o runtime.Object) { o.(*corev1.Pod).Labels["app"] = "red" }},
		{name: "a label is added", want: `.metadata.labels["red"]`, obj: pod(), change: func(o runtime.Object) { o.(*corev1.Pod).Labels["red"] = "" }},
		{name: "a label is removed", want: `.metadata.labels["app"]`, obj: pod(), change: func(o runtime.Object) { delete(o.(*corev1.Pod).Labels, "app") }},
		{name: "labels are replaced", want: `.metadata.labels["a"]`, obj: pod(), change: func(o runtime.Object) { o.(*corev1.Pod).Labels = map[string]string{"a": "b"} }},
		{name: "a map is made", want: ".metadata.annotations", obj: pod(), change: func(o runtime.Object) { o.(*corev1.Pod).Annotations = map[string]string{} }},
		{name: "an image changes", want: ".spec.containers[0].image", obj: pod(), change: func(o runtime.Object) { o.(*corev1.Pod).Spec.Containers[0].Image = "red:1" }},
		{name: "a container is added", want: ".spec.containers", obj: pod(), change: func(o runtime.Object) {
			p := o.(*corev1.Pod)
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{})
		}},
		{name: "a pointer's value changes", want: ".spec.priority", obj: pod(), change: func(o runtime.Object) { *o.(*corev1.Pod).Spec.Priority = 2 }},
		{name: "a pointer is removed", want: ".spec.priority", obj: pod(), change: func(o runtime.Object) { o.(*corev1.Pod).Spec.Priority = nil }},
		{name: "a quantity changes", want: `.spec.containers[0].resources.requests["cpu"]`, obj: pod(), change: func(o runtime.Object) {
			o.(*corev1.Pod).Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("2")
		}},
		{name: "a time changes", want: ".metadata.creationTimestamp", obj: pod(), change: func(o runtime.Object) { o.(*corev1.Pod).CreationTimestamp = metav1.Now() }},
		{name: "the kind is set", want: ".kind", obj: pod(), change: func(o runtime.Object) { o.(*corev1.Pod).Kind = "Pod" }},
		{name: "a byte changes", want: `.data["password"]`, obj: secret(), change: func(o runtime.Object) { o.(*corev1.Secret).Data["password"][0] = 'x' }},
		{name: "a map becomes nil", want: ".stringData", obj: secret(), change: func(o runtime.Object) { o.(*corev1.Secret).StringData = nil }},
		{name: "a field of an unstructured object", want: `["spec"]["items"][1]`, obj: free(), change: func(o runtime.Object) {
			o.(*unstructured.Unstructured).Object["spec"].(map[string]any)["items"].([]any)[1] = "b"
		}},
		{name: "another type", want: `["spec"]["items"]`, obj: free(), change: func(o runtime.Object) {
			o.(*unstructured.Unstructured).Object["spec"].(map[string]any)["items"] = "b"
		}},
		{name: "a value in place of null", want: `["spec"]["none"]`, obj: free(), change: func(o runtime.Object) {
			o.(*unstructured.Unstructured).Object["spec"].(map[string]any)["none"] = "b"
		}},
		{name: "a long and strange name", want: `["` + strings.Repeat("n", 63) + `\\n..."]`, obj: free(), change: func(o runtime.Object) {
			o.(*unstructured.Unstructured).Object[strings.Repeat("n", 63)+"\n\x00"+strings.Repeat("n", 1<<20)] = "b"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			saved := tt.obj.DeepCopyObject()
			tt.change(tt.obj)
			path, changed := samples.Changed(tt.obj, saved)
			if changed == tt.none || path != tt.want {
				t.Errorf("the path is %s, changed is %t, want %s", path, changed, tt.want)
			}
			if again, _ := samples.Changed(saved, tt.obj); again != tt.want && !strings.HasSuffix(tt.name, "replaced") {
				t.Errorf("the other way round the path is %s, want %s", again, tt.want)
			}
		})
	}
}

// lazy is an object that keeps something when it is read.
type lazy struct {
	corev1.ConfigMap
	since time.Time
}

func (l *lazy) DeepCopyObject() runtime.Object { return &lazy{ConfigMap: *l.DeepCopy()} }

// mute is an object that counts its copies.
type mute struct {
	corev1.ConfigMap
	copies *int
	panics bool
	null   bool
}

func (m *mute) DeepCopyObject() runtime.Object {
	switch *m.copies++; {
	case m.panics:
		panic("no copy")
	case m.null:
		return nil
	}
	return &mute{ConfigMap: *m.DeepCopy(), copies: m.copies}
}

// TestSamplesAreBounded: endless events of any objects make a bounded number of copies that
// take bounded memory.
func TestSamplesAreBounded(t *testing.T) {
	deep := map[string]any{}
	for range 600 {
		deep = map[string]any{"a": deep}
	}
	fields := map[string]string{}
	for n := range 100_000 {
		fields[fmt.Sprint(n)] = ""
	}
	big := map[string]string{"a": strings.Repeat("x", 900<<10)}
	bigger := map[string]string{"a": strings.Repeat("x", 1<<20)}
	for _, tt := range []struct {
		name            string
		obj             func(copies *int) any
		samples, copies int // that 10,000 events make
	}{
		{"small", func(n *int) any { return &mute{copies: n} }, 16, 16},
		{"almost 1 MiB", func(n *int) any { return &mute{ConfigMap: corev1.ConfigMap{Data: big}, copies: n} }, 1, 1},
		{"more than 1 MiB", func(n *int) any { return &mute{ConfigMap: corev1.ConfigMap{Data: bigger}, copies: n} }, 0, 0},
		{"100,000 fields", func(n *int) any { return &mute{ConfigMap: corev1.ConfigMap{Data: fields}, copies: n} }, 0, 0},
		{"deep", func(*int) any { return &unstructured.Unstructured{Object: deep} }, 0, 0},
		{"a copy that panics", func(n *int) any { return &mute{copies: n, panics: true} }, 0, 32},
		{"a copy that is nil", func(n *int) any { return &mute{copies: n, null: true} }, 0, 32},
		{"no object", func(*int) any { return "x" }, 0, 0},
		{"nil", func(*int) any { return nil }, 0, 0},
		{"a nil pointer", func(*int) any { return (*corev1.ConfigMap)(nil) }, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s samples.Samples
				store := cache.NewStore(cache.MetaNamespaceKeyFunc)
				copies := 0
				for range 10_000 {
					s.OnUpdate(nil, tt.obj(&copies))
				}
				n, bytes := s.Held()
				if n != tt.samples || copies != tt.copies || bytes > 1<<20 || (bytes == 0) != (n == 0) {
					t.Errorf("%d samples of %d bytes and %d copies, want %d samples and %d copies", n, bytes, copies, tt.samples, tt.copies)
				}
				time.Sleep(time.Minute - 1)
				s.OnUpdate(nil, tt.obj(&copies))
				if n == 16 && copies != tt.copies {
					t.Error("a sample is replaced before its time")
				}
				if found := s.Compare(store); len(found) > 0 {
					t.Errorf("found %v", found)
				}
				if n, bytes := s.Held(); n > 0 || bytes > 0 {
					t.Errorf("%d samples of %d bytes are kept of objects that the cache lacks", n, bytes)
				}
			})
		})
	}
}

// TestSamplesTurn: samples of objects that stay make room for others, by events and, in a
// quiet cache, by a refresh.
func TestSamplesTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s samples.Samples
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		copies := 0
		object := func(name string) *mute {
			m := &mute{ConfigMap: corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}, copies: &copies}
			if err := store.Add(m); err != nil {
				t.Fatal(err)
			}
			return m
		}
		for n := range 1000 {
			s.OnAdd(object(fmt.Sprint(n)), true)
		}
		if copies != 16 {
			t.Errorf("%d copies of the first list, want 16", copies)
		}
		time.Sleep(time.Minute)
		for n := range 1000 {
			s.OnUpdate(nil, object(fmt.Sprint("y", n)))
			time.Sleep(time.Minute)
		}
		if copies != 32 {
			t.Errorf("%d copies after more events, want 32 in a period", copies)
		}
		s.Compare(store)
		s.Refresh(store)
		if copies <= 32 || copies > 32+8 {
			t.Errorf("%d copies after a refresh, want 1 to 8 more", copies)
		}
		if n, _ := s.Held(); n != 16 {
			t.Errorf("%d samples are held, want 16", n)
		}
		same := object("x")
		for range 1000 {
			time.Sleep(time.Minute)
			s.Compare(store)
			s.OnUpdate(nil, same)
		}
		if copies > 32+8+1 {
			t.Errorf("%d copies: an object that does not change is sampled again", copies)
		}
	})
}
