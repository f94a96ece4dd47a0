package encoded_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apijson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
)

type object interface {
	runtime.Object
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// kinds are built-in types.
var kinds = []object{
	&corev1.Pod{}, &corev1.Service{}, &corev1.ConfigMap{}, &corev1.Secret{}, &corev1.Node{}, &corev1.Namespace{}, &corev1.ServiceAccount{},
	&corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{},
	&batchv1.Job{}, &batchv1.CronJob{}, &networkingv1.Ingress{}, &networkingv1.NetworkPolicy{}, &discoveryv1.EndpointSlice{}, &coordinationv1.Lease{},
	&rbacv1.ClusterRole{}, &policyv1.PodDisruptionBudget{}, &autoscalingv2.HorizontalPodAutoscaler{}, &eventsv1.Event{}, &storagev1.StorageClass{},
	&admissionv1.ValidatingWebhookConfiguration{},
}

func newOf(obj object) object { return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(object) }

// random fills a new object of a kind.
func random(kind object, seed int64) object {
	obj := newOf(kind)
	f := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), scheme.Codecs)
	f.NilChance(0.3).NumElements(0, 3).Fill(obj)
	obj.SetName(fmt.Sprint("name-", seed))
	obj.SetNamespace([]string{"", "default"}[seed%2])
	if seed%7 == 0 {
		obj.SetName(strings.Repeat("n", int(250+seed))) // the API server does not limit the names of Roles
	}
	if seed%5 == 0 {
		obj.SetDeletionTimestamp(new(metav1.Unix(1_700_000_000+seed, 0)))
		obj.SetDeletionGracePeriodSeconds(new(seed))
	}
	return obj
}

// TestKinds is a property of random objects of all kinds in both formats: what Decode returns is
// what apimachinery's decoder returns, without what was dropped, and the header is that of it.
func TestKinds(t *testing.T) {
	for _, kind := range kinds {
		t.Run(reflect.TypeOf(kind).Elem().String(), func(t *testing.T) {
			t.Parallel()
			drop, err := encoded.NewDrop(reflect.TypeOf(kind).Elem(), "metadata.managedFields", "metadata.annotations[gone]")
			if err != nil {
				t.Fatal(err)
			}
			for seed := range int64(100) {
				obj := random(kind, seed)
				if seed%3 == 0 {
					a := obj.GetAnnotations()
					if a == nil {
						a = map[string]string{}
					}
					a["gone"], a["kept"] = "x", "y"
					obj.SetAnnotations(a)
				}
				for _, format := range []encoded.Format{encoded.JSON, encoded.Protobuf} {
					data := encode(t, obj, format)
					want := decode(t, kind, data, format)
					check(t, kind, data, format, nil, want)
					want.SetManagedFields(nil)
					a := want.GetAnnotations()
					if delete(a, "gone"); len(a) == 0 && format == encoded.Protobuf {
						a = nil
					}
					want.SetAnnotations(a)
					check(t, kind, data, format, drop, want)
				}
			}
		})
	}
}

func encode(t *testing.T, obj object, format encoded.Format) (data []byte) {
	t.Helper()
	var err error
	if format == encoded.Protobuf {
		data, err = obj.Marshal()
	} else {
		data, err = json.Marshal(obj)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t *testing.T, kind object, data []byte, format encoded.Format) object {
	t.Helper()
	obj := newOf(kind)
	var err error
	if format == encoded.Protobuf {
		err = obj.Unmarshal(data)
	} else {
		err = apijson.Unmarshal(data, obj)
	}
	if err != nil {
		t.Fatal(err)
	}
	obj.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind().GroupVersion().WithKind(""))
	return obj
}

func check(t *testing.T, kind object, data []byte, format encoded.Format, drop *encoded.Drop, want object) {
	t.Helper()
	before := string(data)
	o, err := encoded.Parse(data, format, drop, nil)
	if err != nil {
		t.Fatalf("Parse of %s: %v", data, err)
	}
	if string(data) != before {
		t.Fatal("Parse changed its input")
	}
	clear(data) // it is the caller's
	defer copy(data, before)
	got := newOf(kind)
	if err := o.Decode(got); err != nil {
		t.Fatalf("Decode: %v", err)
	}
	want.GetObjectKind().SetGroupVersionKind(got.GetObjectKind().GroupVersionKind())
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("Decode:\n%+v\nwant\n%+v", got, want)
	}
	sameHeader(t, o, want)
}

// sameHeader compares all methods of metav1.Object.
func sameHeader(t *testing.T, got *encoded.Object, want metav1.Object) {
	t.Helper()
	m := reflect.TypeFor[metav1.Object]()
	for i := range m.NumMethod() {
		name := m.Method(i).Name
		if !strings.HasPrefix(name, "Get") || name == "GetSelfLink" {
			continue
		}
		a := reflect.ValueOf(got).MethodByName(name).Call(nil)[0].Interface()
		b := reflect.ValueOf(want).MethodByName(name).Call(nil)[0].Interface()
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("%s is %#v, want %#v", name, a, b)
		}
	}
	meta, err := got.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	if w := reflect.ValueOf(want).Elem().FieldByName("ObjectMeta").Interface(); !reflect.DeepEqual(meta, w) {
		t.Fatalf("Metadata is %+v, want %+v", meta, w)
	}
}

// thing is a custom resource.
type thing struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Text   string            `json:"text"`
		Number int64             `json:"number"`
		Any    any               `json:"any"`
		Map    map[string]string `json:"map"`
		List   []struct {
			Name  string `json:"name"`
			Large string `json:"large"`
		} `json:"list"`
	} `json:"spec"`
}

func (o *thing) DeepCopyObject() runtime.Object { c := *o; return &c }

// TestJSON has forms of JSON that an API server does not send.
func TestJSON(t *testing.T) {
	drop, err := encoded.NewDrop(reflect.TypeFor[thing](), "metadata.managedFields", "spec.list.large", "spec.map[b]")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`{"metadata":{"name":"a","namespace":"b","uid":"c","resourceVersion":"4"}}`,
		` { "metadata" : { "name" : "a" , "labels" : { "x" : "y" } , "uid" : null } , "spec" : { "text" : "\"}{" } } `,
		`{"spec":{"any":{"metadata":{"name":"wrong"}}},"metadata":{"annotations":{"name":"wrong"},"name":"a"}}`,
		`{"met\u0061data":{"n\u0061me":"a\u0041","namespace":"\ud83d\ude00"}}`,
		`{"metadata":{"name":"a"},"metadata":{"namespace":"b"}}`,
		`{"metadata":{"name":"a","name":"b"}}`,
		`{"metadata":{"name":"a","name":null}}`,
		`{"metadata":{"name":"a"},"metadata":null}`,
		`{"metadata":null}`,
		`{}`,
		`{"Metadata":{"name":"a"},"metadata":{"Name":"b"}}`,
		`{"metadata":{"name":"a` + "\xff" + `"}}`,
		`{"metadata":{"name":"` + strings.Repeat("a", 254) + `"}}`,
		`{"metadata":{"name":"` + strings.Repeat("a", 255) + `"}}`,
		`{"metadata":{"name":"` + strings.Repeat("a", 256) + `","namespace":"b"}}`,
		`{"metadata":{"name":"` + strings.Repeat("é", 200) + `","uid":"c","namespace":"` + strings.Repeat("b", 70_000) + `"}}`,
		`{"metadata":{"name":"` + strings.Repeat("a", 256) + `","name":"b"}}`,
		`{"metadata":{"name":"a\\\\","uid":"\\"}}`,
		`{"spec":{"number":9007199254740993,"list":[],"map":{}}}`,
		`{"spec":{"any":[[],[[{}]],"[",1e3,true,null]}}`,
	} {
		want := &thing{}
		if err := apijson.Unmarshal([]byte(text), want); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, d := range []*encoded.Drop{nil, drop} {
			o, err := encoded.Parse([]byte(text), encoded.JSON, d, nil)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			got := &thing{}
			if err := o.Decode(got); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, want %+v", text, got, want)
			}
			sameHeader(t, o, want)
		}
	}
}

func TestDrop(t *testing.T) {
	parse := func(kind object, format encoded.Format, paths ...string) object {
		drop, err := encoded.NewDrop(reflect.TypeOf(kind).Elem(), paths...)
		if err != nil {
			t.Fatal(err)
		}
		o, err := encoded.Parse(encode(t, kind, format), format, drop, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := newOf(kind)
		if err := o.Decode(got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, format := range []encoded.Format{encoded.JSON, encoded.Protobuf} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"}, Data: map[string][]byte{"x": []byte("1"), "y": []byte("2")}, Type: "t"}
		if got := parse(secret, format, "data").(*corev1.Secret); got.Data != nil || got.Type != "t" || got.Name != "a" {
			t.Errorf("without data: %+v", got)
		}
		if got := parse(secret, format, "data[x]").(*corev1.Secret); len(got.Data) != 1 || string(got.Data["y"]) != "2" {
			t.Errorf("without data[x]: %+v", got)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "m"}}}
		for _, name := range []string{"first", "second"} {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Env: []corev1.EnvVar{{Name: "E", Value: strings.Repeat("v", 300)}}, Image: "i"})
		}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{{Key: "k"}}}, EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		got := parse(pod, format, "spec.containers.env", "spec.volumes.configMap.items", "spec.volumes.emptyDir", "metadata.labels").(*corev1.Pod)
		if len(got.Spec.Containers) != 2 || got.Spec.Containers[1].Env != nil || got.Spec.Containers[1].Image != "i" || got.Labels != nil {
			t.Errorf("containers: %+v", got)
		}
		if v := got.Spec.Volumes[0]; v.ConfigMap == nil || v.ConfigMap.Items != nil || v.EmptyDir != nil || v.Name != "v" {
			t.Errorf("volumes: %+v", v)
		}
	}
	for path, want := range map[string]string{
		"spec.nothing":          `path "spec.nothing": no field "nothing" in a v1.PodSpec`,
		"Spec":                  `path "Spec": no field "Spec" in a v1.Pod`,
		"":                      `path "": no field "" in a v1.Pod`,
		"metadata":              `path "metadata": a cache needs the field`,
		"metadata.uid":          `path "metadata.uid": a cache needs the field`,
		"metadata.labels[a":     `path "metadata.labels[a": no ] at the end`,
		"spec.containers[].env": `path "spec.containers[].env": a key in brackets must be at the end, and a list needs none`,
		"metadata.name.x":       `path "metadata.name.x": no field "x" in a string`,
		"spec[x]":               `path "spec[x]": the field is a v1.PodSpec and no map`,
		"metadata.labels.a":     `path "metadata.labels.a": no field "a" in a map[string]string`,
		"spec.containers[0]":    `path "spec.containers[0]": the field is a []v1.Container and no map`,
		"metadata[x]":           `path "metadata[x]": the field is a v1.ObjectMeta and no map`,
		"spec..containers":      `path "spec..containers": no field "" in a v1.PodSpec`,
		"metadata.name[x]":      `path "metadata.name[x]": the field is a string and no map`,
		"status.startTime.foo":  `path "status.startTime.foo": no field "foo" in a v1.Time`,
	} {
		if _, err := encoded.NewDrop(reflect.TypeFor[corev1.Pod](), path); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
}

func TestMalformed(t *testing.T) {
	for _, test := range []struct {
		data   string
		format encoded.Format
	}{
		{"", encoded.JSON},
		{"[]", encoded.JSON},
		{"7", encoded.JSON},
		{`"metadata"`, encoded.JSON},
		{`{"metadata":{"name":"a"}`, encoded.JSON},
		{`{"metadata":{"name":1}}`, encoded.JSON},
		{`{"metadata":[]}`, encoded.JSON},
		{`{"metadata":{"name":"\x"}}`, encoded.JSON},
		{`{"a":"b",}`, encoded.JSON},
		{`{"a" "b"}`, encoded.JSON},
		{`{"a":}`, encoded.JSON},
		{"\x0a\x05\x0a\x01", encoded.Protobuf},
		{"\x0a", encoded.Protobuf},
		{"\x00", encoded.Protobuf},
	} {
		if o, err := encoded.Parse([]byte(test.data), test.format, nil, nil); err == nil {
			t.Errorf("Parse of %q returned %q and no error", test.data, o.Bytes())
		}
	}
	// What Parse does not look at fails in Decode.
	o, err := encoded.Parse([]byte(`{"metadata":{"name":"a"},"spec":{"number":"x"}}`), encoded.JSON, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Decode(&thing{}); err == nil {
		t.Error("Decode returned no error")
	}
}

// TestScratch shows that objects do not share memory with the buffer.
func TestScratch(t *testing.T) {
	var scratch []byte
	drop, err := encoded.NewDrop(reflect.TypeFor[thing](), "metadata.managedFields")
	if err != nil {
		t.Fatal(err)
	}
	first, err := encoded.Parse([]byte(`{"metadata":{"name":"first"}}`), encoded.JSON, drop, &scratch)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := encoded.Parse([]byte(`{"metadata":{"name":"other"}}`), encoded.JSON, drop, &scratch); err != nil {
		t.Fatal(err)
	}
	if first.GetName() != "first" || !strings.Contains(string(first.Bytes()), "first") {
		t.Errorf("the first object has changed: %s", first.Bytes())
	}
}

func TestImmutable(t *testing.T) {
	o, err := encoded.Parse([]byte(`{"metadata":{"name":"a"}}`), encoded.JSON, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	setters := 0
	v := reflect.ValueOf(o)
	for i := range v.NumMethod() {
		name, method := v.Type().Method(i).Name, v.Method(i)
		if !strings.HasPrefix(name, "Set") {
			continue
		}
		setters++
		func() {
			defer func() {
				if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "cannot be changed") {
					t.Errorf("%s: %v", name, r)
				}
			}()
			method.Call([]reflect.Value{reflect.Zero(method.Type().In(0))})
		}()
	}
	if setters != 15 {
		t.Errorf("%d setters, want 15", setters)
	}
}

// TestSkip cuts values at each byte.
func TestSkip(t *testing.T) {
	for _, value := range []string{`{"a":[1,{"b":"}\\"}],"c":"\""}`, `[[],{},"]"]`, `"a\\\"b"`} {
		if end, err := encoded.Skip([]byte(value+" ,"), 0); err != nil || end != len(value) {
			t.Errorf("Skip of %s: %d, %v", value, end, err)
		}
		for i := range value {
			if end, err := encoded.Skip([]byte(value[:i]), 0); !errors.Is(err, encoded.ErrShort) {
				t.Errorf("Skip of %q: %d, %v", value[:i], end, err)
			}
		}
	}
	for _, value := range []string{"12", "true", "-1e5"} {
		if end, err := encoded.Skip([]byte("  "+value+"}"), 2); err != nil || end != 2+len(value) {
			t.Errorf("Skip of %s: %d, %v", value, end, err)
		}
	}
}

// FuzzHostile compares with apimachinery's decoders on what they accept.
func FuzzHostile(f *testing.F) {
	for seed := range int64(4) {
		pod := random(&corev1.Pod{}, seed)
		for _, isProtobuf := range []bool{false, true} {
			var data []byte
			if isProtobuf {
				data, _ = pod.Marshal()
			} else {
				data, _ = json.Marshal(pod)
			}
			f.Add(data, isProtobuf)
		}
	}
	drop, err := encoded.NewDrop(reflect.TypeFor[corev1.Pod](), "metadata.managedFields", "spec.containers.env", "metadata.labels[a]")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, isProtobuf bool) {
		format := encoded.JSON
		want := &corev1.Pod{}
		var wantErr error
		if isProtobuf {
			format = encoded.Protobuf
			wantErr = want.Unmarshal(data)
		} else {
			wantErr = apijson.Unmarshal(data, want)
		}
		if _, err := encoded.Parse(data, format, drop, nil); err != nil && wantErr == nil {
			t.Fatalf("with a Drop: %v", err)
		}
		o, err := encoded.Parse(data, format, nil, nil)
		switch {
		case wantErr != nil:
			if err == nil && o.Decode(&corev1.Pod{}) == nil {
				t.Fatalf("Decode accepts what apimachinery rejects: %v", wantErr)
			}
			return
		case err != nil:
			t.Fatal(err)
		}
		got := &corev1.Pod{}
		if err := o.Decode(got); err != nil {
			t.Fatal(err)
		}
		want.TypeMeta = got.TypeMeta
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
		if o.GetName() != want.Name || o.GetNamespace() != want.Namespace || o.GetUID() != want.UID || o.GetResourceVersion() != want.ResourceVersion {
			t.Fatalf("header %q %q %q %q, want %q %q %q %q", o.GetName(), o.GetNamespace(), o.GetUID(), o.GetResourceVersion(),
				want.Name, want.Namespace, want.UID, want.ResourceVersion)
		}
		if utf8.Valid(data) && !reflect.DeepEqual(o.GetLabels(), want.Labels) {
			t.Fatalf("labels %v, want %v", o.GetLabels(), want.Labels)
		}
	})
}
