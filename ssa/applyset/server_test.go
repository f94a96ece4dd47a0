package applyset_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

var (
	crdResource       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// arena is a namespace and a group of the API that are not there yet.
type arena struct {
	dynamic.Interface // of an administrator
	name, group       string
	user              *rest.Config // of who may do no more than the documentation says is needed
}

func newArena(t *testing.T) arena {
	t.Helper()
	client, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	// The name of a namespace that is there is one that nobody else has.
	name := testserver.Namespace(t) + "-batch"
	w := arena{Interface: client, name: name, group: name + ".example.com"}
	w.user = testserver.Limited(t, "",
		rbacv1.PolicyRule{APIGroups: []string{"", w.group}, Resources: []string{"namespaces", "configmaps", "paints"}, Verbs: []string{"create", "patch", "delete", "get"}},
		rbacv1.PolicyRule{APIGroups: []string{crdResource.Group}, Resources: []string{crdResource.Resource}, Verbs: []string{"create", "patch", "delete", "get", "watch"}},
	)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for gvr, name := range map[schema.GroupVersionResource]string{crdResource: "paints." + w.group, namespaceResource: w.name} {
			if err := w.Resource(gvr).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				t.Error(err)
			}
		}
	})
	return w
}

// objects are two objects of the first stage, and before them n of the second, of which
// one is of the kind that the first stage defines.
func (w arena) objects(n int) []any {
	all := configMaps(n-1, w.name)
	return append(all,
		object(`{"apiVersion":"%s/v1","kind":"Paint","metadata":{"name":"one","namespace":"%s"},"spec":{"color":"red"}}`, w.group, w.name),
		object(paintCRD, w.group, w.group),
		applycorev1.Namespace(w.name).WithLabels(map[string]string{"a": "b"}))
}

func (w arena) kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: w.group, Version: "v1", Kind: "Paint"}
}

func (w arena) paints() dynamic.ResourceInterface {
	return w.Resource(schema.GroupVersionResource{Group: w.group, Version: "v1", Resource: "paints"}).Namespace(w.name)
}

// process returns a batch whose requests an incarnation can see and spoil.
func (w arena) process(t *testing.T, on func(*fault.Op) fault.Fault) (*applyset.Batch, *fault.Incarnation) {
	t.Helper()
	process, err := fault.New(w.user, on, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	client, err := dynamic.NewForConfig(process.Config())
	if err != nil {
		t.Fatal(err)
	}
	return &applyset.Batch{Client: client, Mapper: batchMapper(w.kind()), Manager: manager}, process
}

// Everything is applied, whatever the order in which it is given, and nothing of the
// second stage before the first one is there. Applied again it changes nothing.
// Deleted, it goes in the reverse order.
//
// Proves AS1 and CK6.
func TestServerBatch(t *testing.T) {
	w := newArena(t)
	var mu sync.Mutex
	second, deleted := 0, 0
	const objectsOfSecond = 20
	b, _ := w.process(t, func(op *fault.Op) fault.Fault {
		if op.Namespace == "" || op.Resource == "namespaces" || op.Verb == "get" {
			return fault.Fault{}
		}
		mu.Lock()
		defer mu.Unlock()
		if op.Verb == "delete" {
			if !strings.Contains(string(op.Body), `"propagationPolicy":"Foreground"`) {
				t.Errorf("%s is deleted with %s", op.Name, op.Body)
			}
			if deleted++; deleted > objectsOfSecond {
				return fault.Fault{} // the second time
			}
		}
		crd, err := w.Resource(crdResource).Get(t.Context(), "paints."+w.group, metav1.GetOptions{})
		if err != nil {
			t.Errorf("%s %s: the CustomResourceDefinition: %v", op.Verb, op.Resource, err)
			return fault.Fault{}
		}
		if op.Verb == "delete" {
			if crd.GetDeletionTimestamp() != nil {
				t.Errorf("%s is deleted after its CustomResourceDefinition", op.Name)
			}
			return fault.Fault{}
		}
		second++
		if conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions"); !strings.Contains(fmt.Sprint(conditions), "status:True type:Established") {
			t.Errorf("%s before the CustomResourceDefinition is established: %v", op.Name, conditions)
		}
		return fault.Fault{}
	})
	objects := w.objects(objectsOfSecond)
	answers, err := b.Apply(t.Context(), objects...)
	if err != nil {
		t.Fatal(err)
	}
	if second != objectsOfSecond || len(answers) != len(objects) {
		t.Errorf("%d requests of the second stage, %d answers", second, len(answers))
	}
	if resets := b.Mapper.(*resettable).resets; resets != 1 {
		t.Errorf("%d resets of the mapper, want 1", resets)
	}
	for i, a := range answers[:objectsOfSecond-1] {
		if a.GetName() != fmt.Sprint("object-", i) || a.GetUID() == "" {
			t.Errorf("answer %d is %v", i, a)
		}
	}
	if color, _, _ := unstructured.NestedString(answers[objectsOfSecond-1].Object, "spec", "color"); color != "red" {
		t.Errorf("the answer for the kind of the batch is %v", answers[objectsOfSecond-1])
	}
	again, err := b.Apply(t.Context(), objects...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range answers {
		// The status of the first stage changes by itself.
		if i < objectsOfSecond && again[i].GetResourceVersion() != answers[i].GetResourceVersion() || again[i].GetUID() != answers[i].GetUID() {
			t.Errorf("applied again, %s changed", again[i].GetName())
		}
	}

	// One object is gone, and one is another one by now: both are done.
	maps := w.Resource(configMapResource).Namespace(w.name)
	for _, name := range []string{"object-0", "object-1"} {
		if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	other, err := maps.Create(t.Context(), object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"object-1"}}`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The namespace stays, to see what is left in it.
	var given []any
	for _, a := range again[:objectsOfSecond+1] {
		given = append(given, a)
	}
	if err := b.Delete(t.Context(), metav1.DeletePropagationForeground, given...); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), metav1.DeletePropagationForeground, given...); err != nil {
		t.Errorf("deleted again: %v", err)
	}
	if deleted != 2*objectsOfSecond {
		t.Errorf("%d deletions of the second stage", deleted)
	}
	left, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range left.Items {
		if o.GetDeletionTimestamp() == nil && strings.HasPrefix(o.GetName(), "object-") && o.GetUID() != other.GetUID() {
			t.Errorf("%s is left", o.GetName())
		}
	}
	if live, err := maps.Get(t.Context(), "object-1", metav1.GetOptions{}); err != nil || live.GetUID() != other.GetUID() || live.GetDeletionTimestamp() != nil {
		t.Errorf("what is not of the batch was deleted: %v, error %v", live, err)
	}
	if crd, err := w.Resource(crdResource).Get(t.Context(), "paints."+w.group, metav1.GetOptions{}); !apierrors.IsNotFound(err) && crd.GetDeletionTimestamp() == nil {
		t.Errorf("the CustomResourceDefinition is left: %v, error %v", crd, err)
	}
	if err := b.Delete(t.Context(), metav1.DeletePropagationForeground, again[objectsOfSecond+1]); err != nil {
		t.Error(err)
	}
	if err := b.Delete(t.Context(), metav1.DeletePropagationForeground, again[objectsOfSecond+1]); err != nil {
		t.Errorf("a namespace that is being deleted: %v", err)
	}
}

// An object that fails stops no other of its stage, and all of the next one.
func TestServerBatchErrors(t *testing.T) {
	w := newArena(t)
	b, _ := w.process(t, nil)
	objects := w.objects(3)
	if _, err := b.Apply(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
	maps := w.Resource(configMapResource).Namespace(w.name)
	if _, err := maps.Patch(t.Context(), "object-0", types.MergePatchType, []byte(`{"data":{"color":"blue"}}`), metav1.PatchOptions{FieldManager: "painter"}); err != nil {
		t.Fatal(err)
	}
	objects = append(objects,
		object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"misspelt","namespace":"%s"},"date":{"a":"b"}}`, w.name),
		object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"nowhere","namespace":"%s-nowhere"}}`, w.name),
		applycorev1.ConfigMap("guarded", w.name).WithUID("u"),
		applycorev1.ConfigMap("fine", w.name),
	)
	answers, err := b.TryApply(t.Context(), objects...)
	all := objectErrors(t, err)
	cause, ok := apierrors.StatusCause(all[0], metav1.CauseTypeFieldManagerConflict)
	if !ok || !apierrors.IsConflict(all[0]) || cause.Field != ".data.color" || !strings.Contains(cause.Message, `"painter"`) {
		t.Errorf("object 0: error %v, want a conflict", all[0])
	}
	if all[5] == nil || !strings.Contains(all[5].Error(), "date") || !apierrors.IsNotFound(all[6]) || !apierrors.IsConflict(all[7]) || len(all) != 4 {
		t.Errorf("error %v", err)
	}
	for i := range objects {
		if (answers[i] == nil) != (all[i] != nil) {
			t.Errorf("object %d: answer %v, error %v", i, answers[i], all[i])
		}
	}
	if answers[8].GetName() != "fine" {
		t.Errorf("the last answer is %v", answers[8])
	}
	// By force the first one is no error. What only the server knows about the first
	// stage stops the second.
	objects = append(w.objects(3), object(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"Not_a_name"}}`))
	objects[0].(*config).WithData(map[string]string{"color": "green"})
	before, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	answers, err = b.Apply(t.Context(), objects...)
	all = objectErrors(t, err)
	if len(all) != 4 || !apierrors.IsInvalid(all[5]) || answers[3] == nil || answers[4] == nil {
		t.Errorf("error %v, answers %v", err, answers)
	}
	for i := range 3 {
		if !errors.Is(all[i], applyset.ErrNotTried) {
			t.Errorf("object %d: error %v, want ErrNotTried", i, all[i])
		}
	}
	if after, err := maps.List(t.Context(), metav1.ListOptions{}); err != nil || cmp.Diff(before.Items, after.Items) != "" {
		t.Errorf("the second stage was begun: %v, error %v", after, err)
	}
	if answers, err = b.Apply(t.Context(), objects[:5]...); err != nil {
		t.Error(err)
	} else if color, _, _ := unstructured.NestedString(answers[0].Object, "data", "color"); color != "green" {
		t.Errorf("by force the color is %s", color)
	}
}

// A CustomResourceDefinition that will not be established, or not in time, is reported
// and the second stage not begun. One whose events are lost is found all the same.
//
// Proves AS1.
func TestServerBatchWait(t *testing.T) {
	tests := []struct {
		name    string
		timeout time.Duration
		prepare func(t *testing.T, w arena, process *fault.Incarnation, watching <-chan struct{})
		want    string
	}{
		{name: "names are taken", prepare: func(t *testing.T, w arena, _ *fault.Incarnation, _ <-chan struct{}) {
			taken := object(strings.ReplaceAll(paintCRD, "paints", "colors"), w.group, w.group)
			testserver.InstallCRD(t, taken.Object)
		}, want: "spec.names"},
		{name: "no event", timeout: 300 * time.Millisecond, prepare: func(t *testing.T, _ arena, process *fault.Incarnation, _ <-chan struct{}) {
			t.Cleanup(process.Hold(crdResource.GroupResource().String()))
		}, want: "CRDTimeout of 300ms"},
		{name: "cut", prepare: func(t *testing.T, _ arena, process *fault.Incarnation, watching <-chan struct{}) {
			crds := crdResource.Resource + "." + crdResource.Group
			t.Cleanup(process.Hold(crds))
			go func() {
				<-watching
				process.Cut(crds, false)
			}()
		}},
		{name: "cut as too old", prepare: func(t *testing.T, _ arena, process *fault.Incarnation, watching <-chan struct{}) {
			crds := crdResource.Resource + "." + crdResource.Group
			go func() {
				<-watching
				process.Cut(crds, true)
			}()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newArena(t)
			watching := make(chan struct{}, 10)
			b, process := w.process(t, func(op *fault.Op) fault.Fault {
				if op.Verb == "watch" {
					return fault.Fault{Finally: func() { watching <- struct{}{} }}
				}
				return fault.Fault{}
			})
			b.CRDTimeout = tt.timeout
			tt.prepare(t, w, process, watching)
			objects := w.objects(2)
			_, err := b.Apply(t.Context(), objects...)
			all := objectErrors(t, err)
			maps, listErr := w.Resource(configMapResource).Namespace(w.name).List(t.Context(), metav1.ListOptions{LabelSelector: "!x"})
			if listErr != nil {
				t.Fatal(listErr)
			}
			applied := strings.Contains(fmt.Sprint(maps.Items), "object-0")
			if tt.want == "" {
				if err != nil || !applied {
					t.Errorf("error %v, applied %v", err, applied)
				}
				return
			}
			if applied || len(all) != 3 || !errors.Is(all[0], applyset.ErrNotTried) || !errors.Is(all[1], applyset.ErrNotTried) || !strings.Contains(all[2].Error(), tt.want) {
				t.Errorf("applied %v, error %v, want %s", applied, err, tt.want)
			}
		})
	}
}

// Names that were taken are accepted once they are corrected, although the answer to
// that apply still says that they are taken.
//
// Proves AS1.
func TestServerBatchNames(t *testing.T) {
	w := newArena(t)
	b, _ := w.process(t, nil)
	taken := object(strings.ReplaceAll(paintCRD, "paints", "colors"), w.group, w.group)
	testserver.InstallCRD(t, taken.Object)
	for range 2 { // the second apply changes nothing
		if _, err := b.Apply(t.Context(), object(paintCRD, w.group, w.group)); err == nil || !strings.Contains(err.Error(), "spec.names") {
			t.Errorf("taken: error %v", err)
		}
	}
	corrected := strings.NewReplacer(`"Paint"`, `"Dye"`, `"PaintList"`, `"DyeList"`, `"paint"`, `"dye"`).Replace(paintCRD)
	dye := object(`{"apiVersion":"%s/v1","kind":"Dye","metadata":{"name":"one","namespace":"%s"},"spec":{"color":"red"}}`, w.group, w.name)
	if _, err := b.Apply(t.Context(), dye, object(corrected, w.group, w.group), applycorev1.Namespace(w.name)); err != nil {
		t.Errorf("corrected: error %v", err)
	}
	// And back again, which is the third generation: nothing is to be waited for in vain.
	for range 2 {
		_, err := b.Apply(t.Context(), object(strings.Replace(corrected, `"kind":"Dye"`, `"kind":"Paint"`, 1), w.group, w.group))
		if err != nil && !strings.Contains(err.Error(), "spec.names") {
			t.Errorf("taken again: error %v", err)
		}
	}
}

// A CustomResourceDefinition is changed together with objects that need the change: a
// version, and a field. The API server answers from before the change now and then.
func TestServerBatchUpgrade(t *testing.T) {
	late := 0
	for range 6 {
		w := newArena(t)
		var mu sync.Mutex
		tries := map[string]int{}
		b, _ := w.process(t, func(op *fault.Op) fault.Fault {
			mu.Lock()
			defer mu.Unlock()
			if tries[op.Name]++; op.Resource == "paints" && tries[op.Name] == 2 {
				late++
			}
			return fault.Fault{}
		})
		if _, err := b.Apply(t.Context(), w.objects(2)...); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct{ old, new, paint string }{
			{`"name":"v2","served":false`, `"name":"v2","served":true`, `{"apiVersion":"%s/v2","kind":"Paint","metadata":{"name":"two","namespace":"%s"}}`},
			{`"color":{`, `"gloss":{"type":"string"},"color":{`, `{"apiVersion":"%s/v1","kind":"Paint","metadata":{"name":"three","namespace":"%s"},"spec":{"gloss":"high"}}`},
		} {
			if _, err := b.Apply(t.Context(), object(step.paint, w.group, w.name), object(strings.Replace(paintCRD, step.old, step.new, 1), w.group, w.group)); err != nil {
				t.Errorf("%s: %v", step.new, err)
			}
		}
		// What is wrong for good is an error still.
		_, err := b.Apply(t.Context(), object(`{"apiVersion":"%s/v1","kind":"Paint","metadata":{"name":"four","namespace":"%s"},"spec":{"colour":"red"}}`, w.group, w.name))
		if err == nil || !strings.Contains(err.Error(), "colour") {
			t.Errorf("misspelt: error %v", err)
		}
	}
	t.Logf("%d of 12 changes were late", late)
}

// An object is deleted in a version that is not served any more, with a mapper that
// does not know that: it is there, and no answer says that it is gone.
func TestServerBatchUnserved(t *testing.T) {
	w := newArena(t)
	b, _ := w.process(t, nil)
	answers, err := b.Apply(t.Context(), w.objects(2)...)
	if err != nil {
		t.Fatal(err)
	}
	old := w.kind()
	old.Version = "v0"
	mapper := batchMapper(w.kind(), old)
	mapper.Reset()
	b.Mapper = mapper
	paint := answers[1].DeepCopy()
	paint.SetGroupVersionKind(old)
	err = b.Delete(t.Context(), metav1.DeletePropagationBackground, paint)
	if _, getErr := w.paints().Get(t.Context(), "one", metav1.GetOptions{}); getErr != nil || err == nil || !strings.Contains(err.Error(), "does not serve") {
		t.Errorf("error %v, and of the Get %v", err, getErr)
	}
	if err := b.Delete(t.Context(), metav1.DeletePropagationBackground, answers[1]); err != nil {
		t.Error(err)
	}
	if _, err := w.paints().Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted, error %v", err)
	}
}

// state is what there is of an arena, without what differs from one to the next.
func (w arena) state(t *testing.T) map[string]string {
	t.Helper()
	state := map[string]string{}
	add := func(u *unstructured.Unstructured, err error) {
		if apierrors.IsNotFound(err) || err == nil && u.GetDeletionTimestamp() != nil {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		var managers []string
		for _, e := range u.GetManagedFields() {
			if e.Manager == string(manager) {
				managers = append(managers, fmt.Sprint(e.Operation, " ", string(e.FieldsV1.GetRawBytes())))
			}
		}
		spec := fmt.Sprint(u.Object["data"], managers, len(u.GetOwnerReferences()))
		if u.GetKind() == "Paint" {
			spec += fmt.Sprint(u.Object["spec"])
		}
		state[u.GetKind()+" "+strings.TrimPrefix(u.GetName(), w.name)] = strings.ReplaceAll(spec, w.name, "")
	}
	add(w.Resource(namespaceResource).Get(t.Context(), w.name, metav1.GetOptions{}))
	crd, err := w.Resource(crdResource).Get(t.Context(), "paints."+w.group, metav1.GetOptions{})
	if err == nil {
		crd.SetName("paints")
	}
	add(crd, err)
	add(w.paints().Get(t.Context(), "one", metav1.GetOptions{}))
	maps, err := w.Resource(configMapResource).Namespace(w.name).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps.Items {
		if m.GetName() != "kube-root-ca.crt" {
			add(&m, nil)
		}
	}
	return state
}
