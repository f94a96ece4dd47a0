package managerkit_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/controllerkit/controllerkit/managerkit"
)

// notComparable is a reader that cannot be compared with ==.
type notComparable struct {
	client.Reader
	_ []int
}

// valueClient is a client that cannot be compared with ==.
type valueClient struct {
	client.Client
	_ []int
}

// valueObject is an object whose methods have value receivers.
type valueObject struct{ *corev1.ConfigMap }

// badCopy is an object whose DeepCopyObject returns the embedded one.
type badCopy struct{ corev1.ConfigMap }

// TestNewClient checks the errors of the constructors.
func TestNewClient(t *testing.T) {
	c := fakeFor(t)
	reader := readerOnly{c}
	twice := clientScheme(t)
	twice.AddKnownTypeWithName(clientSiteKind().GroupVersion().WithKind("OtherSite"), &clientSite{})
	ambiguous := fake.NewClientBuilder().WithScheme(twice).Build()
	bad := clientScheme(t)
	bad.AddKnownTypeWithName(clientSiteKind().GroupVersion().WithKind("BadCopy"), &badCopy{})
	noCopy := fake.NewClientBuilder().WithScheme(bad).Build()
	site := func(c client.Client, live client.Reader) error {
		_, err := managerkit.NewClient[*clientSite](c, live)
		return err
	}
	kind := func(c client.Client, kind schema.GroupVersionKind) error {
		_, err := managerkit.NewClientForKind[*clientSite](c, readerOnly{c}, kind)
		return err
	}
	anyKind := func(c client.Client, kind schema.GroupVersionKind) error {
		_, err := managerkit.NewClientForKind[client.Object](c, readerOnly{c}, kind)
		return err
	}
	for name, tt := range map[string]struct {
		err  error
		want string // "" means no error
	}{
		"fit":                          {site(c, reader), ""},
		"a reader without ==":          {site(c, notComparable{Reader: c}), ""},
		"the same value without ==":    {site(valueClient{Client: c}, valueClient{Client: c}), ""},
		"no client":                    {site(nil, reader), "the client is nil: pass mgr.GetClient()"},
		"a typed nil as client":        {site((*nilClient)(nil), reader), "the client is nil: pass mgr.GetClient()"},
		"no live":                      {site(c, nil), "live is nil: pass mgr.GetAPIReader()"},
		"a typed nil as live":          {site(c, (*informertest.FakeInformers)(nil)), "live is nil: pass mgr.GetAPIReader()"},
		"live is the client":           {site(c, c), "live is the client for writes, which can read from a cache: pass mgr.GetAPIReader()"},
		"live is a cache":              {site(c, &informertest.FakeInformers{}), "live is a cache (*informertest.FakeInformers): pass mgr.GetAPIReader()"},
		"an interface":                 {newClientErr[client.Object](c), "Object, an interface: call NewClientForKind with the kind of the objects"},
		"an interface of a kind":       {anyKind(c, clientSiteKind()), ""},
		"an interface without scheme":  {anyKind(noScheme{c}, clientSiteKind()), "the client has no scheme: pass mgr.GetClient()"},
		"an interface of no kind":      {anyKind(c, clientSiteKind().GroupVersion().WithKind("Nothing")), `and the scheme of the client has no "client.example.com/v1, Kind=Nothing": call the AddToScheme of its package, or use *unstructured.Unstructured as T`},
		"an interface of a list":       {anyKind(c, corev1.SchemeGroupVersion.WithKind("ConfigMapList")), "as *v1.ConfigMapList, which does not implement it: use the kind of one object"},
		"a value":                      {newClientErr[valueObject](c), "the type is managerkit_test.valueObject: use a pointer to a struct"},
		"not in the scheme":            {newClientErr[*unregistered](c), "the scheme of the client has no *managerkit_test.unregistered: call the AddToScheme of its package"},
		"several kinds":                {site(ambiguous, reader), "the scheme has *managerkit_test.clientSite as [client.example.com/v1, Kind=ClientSite client.example.com/v1, Kind=OtherSite]: call NewClientForKind"},
		"one of several kinds":         {kind(ambiguous, clientSiteKind().GroupVersion().WithKind("OtherSite")), ""},
		"a kind that is not T's":       {kind(c, corev1.SchemeGroupVersion.WithKind("ConfigMap")), `the kind is "/v1, Kind=ConfigMap", and the scheme has *managerkit_test.clientSite as`},
		"the DeepCopyObject of a part": {newClientErr[*badCopy](noCopy), "whose DeepCopyObject returns *v1.ConfigMap: generate it with controller-gen object"},
		"unstructured without a kind":  {newClientErr[*unstructured.Unstructured](c), "call NewClientForKind with the group, version and kind of one object"},
		"metadata without a kind":      {newClientErr[*metav1.PartialObjectMetadata](c), "call NewClientForKind with the group, version and kind of one object"},
	} {
		switch {
		case tt.want == "" && tt.err != nil:
			t.Errorf("%s: %v", name, tt.err)
		case tt.want != "" && (tt.err == nil || !strings.HasPrefix(tt.err.Error(), "managerkit: ") || !strings.Contains(tt.err.Error(), tt.want) || strings.Contains(tt.err.Error(), "\n")):
			t.Errorf("%s: got %v, want one line with %q", name, tt.err, tt.want)
		}
	}
	for _, bad := range []schema.GroupVersionKind{{Kind: "ConfigMap"}, {Version: "v1"}, {Version: "v1", Kind: "ConfigMapList"}} {
		if _, err := managerkit.NewClientForKind[*unstructured.Unstructured](c, reader, bad); err == nil {
			t.Errorf("unstructured of %q: no error", bad)
		}
	}
	var _ cache.Informers = &informertest.FakeInformers{}
}

type nilClient struct{ client.Client }

type noScheme struct{ client.Client }

func (noScheme) Scheme() *runtime.Scheme { return nil }

// TestClientOfAnyKind: one reconciler has clients of several kinds, whose T is an interface, and
// gets objects of the type of each kind. An object of another type is rejected before a request.
func TestClientOfAnyKind(t *testing.T) {
	c := fakeFor(t)
	for _, kind := range []schema.GroupVersionKind{clientSiteKind(), corev1.SchemeGroupVersion.WithKind("ConfigMap")} {
		objects, err := managerkit.NewClientForKind[client.Object](c, readerOnly{c}, kind)
		if err != nil {
			t.Fatal(err)
		}
		objects = objects.Namespace("a")
		made, err := c.Scheme().New(kind)
		if err != nil {
			t.Fatal(err)
		}
		obj := made.(client.Object)
		obj.SetName("one")
		created, err := objects.Create(t.Context(), obj, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := objects.Get(t.Context(), "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		list, err := objects.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("%s: listed %v, %v", kind.Kind, list, err)
		}
		for _, o := range []client.Object{created, got, list.Items[0]} {
			if reflect.TypeOf(o) != reflect.TypeOf(obj) || o.GetName() != "one" || o.GetObjectKind().GroupVersionKind() != kind {
				t.Errorf("got %T of %q, want %T of %q", o, o.GetObjectKind().GroupVersionKind(), obj, kind)
			}
		}
		if _, err := objects.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "the object is a *v1.Secret, and "+kind.String()+" is ") {
			t.Errorf("%s: the create of a Secret: %v", kind.Kind, err)
		}
	}
}

type unregistered struct{ clientSite }

func newClientErr[T client.Object](c client.Client) error {
	_, err := managerkit.NewClient[T](c, readerOnly{c})
	return err
}

// errSent is the error of each request of refusing.
var errSent = errors.New("sent")

// refusing returns a fake that counts its requests and fails them.
func refusing(t testing.TB) (client.Client, *int) {
	sent := new(int)
	fail := func() error { *sent++; return errSent }
	t.Helper()
	return interceptor.NewClient(fakeFor(t), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return fail()
		},
		List:   func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return fail() },
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return fail() },
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return fail() },
		DeleteAllOf: func(context.Context, client.WithWatch, client.Object, ...client.DeleteAllOfOption) error {
			return fail()
		},
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return fail() },
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return fail()
		},
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			return fail()
		},
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			return fail()
		},
	}), sent
}

// TestClientRejects checks that a request that cannot be sent as given is an error, and
// that the object is nil next to an error.
func TestClientRejects(t *testing.T) {
	ctx := t.Context()
	c, sent := refusing(t)
	all := newSites(t, c)
	sites := all.Namespace("ns")
	namespaces, err := managerkit.NewClient[*corev1.Namespace](c, readerOnly{c})
	if err != nil {
		t.Fatal(err)
	}
	site := func(namespace string) *clientSite {
		return &clientSite{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}}
	}
	foreign := site("ns")
	foreign.APIVersion, foreign.Kind = "v1", "ConfigMap"
	config := func(change func(map[string]any)) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "client.example.com/v1", "kind": "ClientSite", "metadata": map[string]any{"name": "a"},
		}}
		if change != nil {
			change(u.Object)
		}
		return u
	}
	m := metav1.ApplyOptions{FieldManager: "m"}
	for name, tt := range map[string]struct {
		call func() (any, error)
		want string // "" means that the request is sent
	}{
		"get":    {func() (any, error) { return sites.Get(ctx, "a", metav1.GetOptions{}) }, ""},
		"list":   {func() (any, error) { return all.List(ctx, metav1.ListOptions{}) }, ""},
		"create": {func() (any, error) { return sites.Create(ctx, site("ns"), metav1.CreateOptions{}) }, ""},
		"update": {func() (any, error) { return sites.Update(ctx, site(""), metav1.UpdateOptions{}) }, ""},
		"status": {func() (any, error) { return sites.UpdateStatus(ctx, site("ns"), metav1.UpdateOptions{}) }, ""},
		"delete": {func() (any, error) { return nil, sites.Delete(ctx, "a", metav1.DeleteOptions{}) }, ""},
		"collection": {func() (any, error) {
			return nil, sites.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		}, ""},
		"patch": {func() (any, error) {
			return sites.Patch(ctx, "a", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		}, ""},
		"subresource": {func() (any, error) {
			return sites.Patch(ctx, "a", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "scale")
		}, ""},
		"apply":        {func() (any, error) { return sites.Apply(ctx, config(nil), m) }, ""},
		"apply status": {func() (any, error) { return sites.ApplyStatus(ctx, config(nil), m) }, ""},
		"cluster":      {func() (any, error) { return namespaces.Get(ctx, "a", metav1.GetOptions{}) }, ""},

		"create nil":      {func() (any, error) { return sites.Create(ctx, nil, metav1.CreateOptions{}) }, "create: the object is nil: pass a *managerkit_test.clientSite"},
		"update nil":      {func() (any, error) { return sites.Update(ctx, nil, metav1.UpdateOptions{}) }, "update: the object is nil"},
		"status nil":      {func() (any, error) { return sites.UpdateStatus(ctx, nil, metav1.UpdateOptions{}) }, "update the status: the object is nil"},
		"other namespace": {func() (any, error) { return sites.Update(ctx, site("other"), metav1.UpdateOptions{}) }, `metadata.namespace of "a" is "other", and the client has "ns": use Client.Namespace("other")`},
		"other kind":      {func() (any, error) { return sites.Update(ctx, foreign, metav1.UpdateOptions{}) }, `apiVersion and kind of "a" are those of /v1, Kind=ConfigMap: use those of client.example.com/v1, Kind=ClientSite`},
		"get of all":      {func() (any, error) { return all.Get(ctx, "a", metav1.GetOptions{}) }, "get: client.example.com/v1, Kind=ClientSite is namespaced, and the client has no namespace: use Client.Namespace"},
		"create of all":   {func() (any, error) { return all.Create(ctx, site(""), metav1.CreateOptions{}) }, "is namespaced"},
		"delete of all":   {func() (any, error) { return nil, all.Delete(ctx, "a", metav1.DeleteOptions{}) }, "is namespaced"},
		"patch of all":    {func() (any, error) { return all.Patch(ctx, "a", types.MergePatchType, nil, metav1.PatchOptions{}) }, "is namespaced"},
		"collection of all": {func() (any, error) {
			return nil, all.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		}, "is namespaced"},
		"get in a namespace":  {func() (any, error) { return namespaces.Namespace("ns").Get(ctx, "a", metav1.GetOptions{}) }, `is cluster-scoped, and the client has namespace "ns": omit Client.Namespace`},
		"list in a namespace": {func() (any, error) { return namespaces.Namespace("ns").List(ctx, metav1.ListOptions{}) }, "is cluster-scoped"},
		"watch":               {func() (any, error) { return sites.List(ctx, metav1.ListOptions{Watch: true}) }, "opts.Watch is set"},
		"negative limit":      {func() (any, error) { return sites.List(ctx, metav1.ListOptions{Limit: -1}) }, "opts.Limit is -1"},
		"bad labels":          {func() (any, error) { return sites.List(ctx, metav1.ListOptions{LabelSelector: "a in b"}) }, "opts.LabelSelector: "},
		"bad fields":          {func() (any, error) { return sites.List(ctx, metav1.ListOptions{FieldSelector: "a"}) }, "opts.FieldSelector: "},
		"collection by bad labels": {func() (any, error) {
			return nil, sites.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "a in b"})
		}, "opts.LabelSelector: "},
		"two subresources": {func() (any, error) {
			return sites.Patch(ctx, "a", types.MergePatchType, nil, metav1.PatchOptions{}, "a", "b")
		}, `the subresources are ["a" "b"]: controller-runtime takes at most one`},
		"apply nil":         {func() (any, error) { return sites.Apply(ctx, nil, m) }, "apply: the configuration is nil"},
		"apply a typed nil": {func() (any, error) { return sites.Apply(ctx, (*unstructured.Unstructured)(nil), m) }, "apply: the configuration is nil"},
		"apply another kind": {func() (any, error) {
			return sites.Apply(ctx, config(func(o map[string]any) { o["kind"] = "Other" }), m)
		}, `apply: apiVersion and kind of the configuration of "a" are those of client.example.com/v1, Kind=Other`},
		"apply elsewhere": {func() (any, error) {
			return sites.Apply(ctx, config(func(o map[string]any) { o["metadata"].(map[string]any)["namespace"] = "other" }), m)
		}, `metadata.namespace of "a" is "other"`},
		"apply without name": {func() (any, error) {
			return sites.Apply(ctx, config(func(o map[string]any) { o["metadata"] = nil }), m)
		}, "metadata.name"},
		"apply as a bad name": {func() (any, error) { return sites.Apply(ctx, config(nil), metav1.ApplyOptions{FieldManager: "\x00"}) }, "apply: the field manager"},
	} {
		before := *sent
		result, err := tt.call()
		requests := *sent - before
		if result != nil && !reflect.ValueOf(result).IsNil() {
			t.Errorf("%s: got an object next to the error %v", name, err)
		}
		switch {
		case tt.want == "" && (!errors.Is(err, errSent) || requests != 1):
			t.Errorf("%s: got %v and %d requests, want the error of one request", name, err, requests)
		case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "managerkit: ") || !strings.Contains(err.Error(), tt.want) || requests != 0):
			t.Errorf("%s: got %v and %d requests, want an error with %q and none", name, err, requests, tt.want)
		}
	}
}

// fill sets each field of a struct of options, except those that are named.
func fill(t *testing.T, options any, except ...string) {
	t.Helper()
	v := reflect.ValueOf(options).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if name == "TypeMeta" {
			continue
		}
		skip := false
		for _, e := range except {
			skip = skip || e == name
		}
		if skip {
			continue
		}
		var value any
		switch f := v.Field(i); f.Interface().(type) {
		case string:
			value = "a=" + strings.ToLower(name)
		case []string:
			value = []string{name}
		case bool:
			value = true
		case int64:
			value = int64(7)
		case *bool:
			value = new(true)
		case *int64:
			value = new(int64(9))
		case *metav1.Preconditions:
			value = &metav1.Preconditions{UID: new(types.UID("u")), ResourceVersion: new("7")}
		case *metav1.DeletionPropagation:
			value = new(metav1.DeletePropagationForeground)
		case metav1.ResourceVersionMatch:
			value = metav1.ResourceVersionMatchExact
		default:
			t.Fatalf("%T.%s has a type that the test does not know: %s", options, name, f.Type())
		}
		v.Field(i).Set(reflect.ValueOf(value).Convert(v.Field(i).Type()))
	}
}

// TestClientPassesOptions checks that every field of every options reaches the client of
// controller-runtime, also the fields that a later version of Kubernetes adds.
func TestClientPassesOptions(t *testing.T) {
	ctx := t.Context()
	var got any
	c := interceptor.NewClient(fakeFor(t), interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, opts ...client.GetOption) error {
			got = (&client.GetOptions{}).ApplyOptions(opts).AsGetOptions()
			return nil
		},
		List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, opts ...client.ListOption) error {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("list: no deadline")
			}
			o := (&client.ListOptions{}).ApplyOptions(opts)
			if o.LabelSelector == nil || o.LabelSelector.String() != "a=labelselector" || o.FieldSelector == nil || o.FieldSelector.String() != "a=fieldselector" {
				t.Errorf("list: parsed selectors %v and %v", o.LabelSelector, o.FieldSelector)
			}
			if o.Namespace != "ns" {
				t.Errorf("list: namespace %q", o.Namespace)
			}
			got = o.AsListOptions()
			return nil
		},
		Create: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.CreateOption) error {
			got = (&client.CreateOptions{}).ApplyOptions(opts).AsCreateOptions()
			return nil
		},
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
			got = (&client.DeleteOptions{}).ApplyOptions(opts).AsDeleteOptions()
			return nil
		},
		DeleteAllOf: func(ctx context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteAllOfOption) error {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("delete the collection: no deadline")
			}
			o := (&client.DeleteAllOfOptions{}).ApplyOptions(opts)
			if o.Namespace != "ns" || o.LabelSelector == nil {
				t.Errorf("delete the collection: namespace %q, labels %v", o.Namespace, o.LabelSelector)
			}
			got = []any{o.AsDeleteOptions(), o.AsListOptions()}
			return nil
		},
		Update: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.UpdateOption) error {
			got = (&client.UpdateOptions{}).ApplyOptions(opts).AsUpdateOptions()
			return nil
		},
		Patch: func(_ context.Context, _ client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			got = patched(t, obj, patch, (&client.PatchOptions{}).ApplyOptions(opts).AsPatchOptions())
			return nil
		},
		SubResourceUpdate: func(_ context.Context, _ client.Client, sub string, _ client.Object, opts ...client.SubResourceUpdateOption) error {
			got = []any{sub, (&client.SubResourceUpdateOptions{}).ApplyOptions(opts).AsUpdateOptions()}
			return nil
		},
		SubResourcePatch: func(_ context.Context, _ client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			got = []any{sub, patched(t, obj, patch, (&client.SubResourcePatchOptions{}).ApplyOptions(opts).AsPatchOptions())}
			obj.SetUID("u")
			return nil
		},
	})
	sites := newSites(t, c).Namespace("ns")
	site := &clientSite{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	var (
		get    metav1.GetOptions
		list   metav1.ListOptions
		create metav1.CreateOptions
		update metav1.UpdateOptions
		remove metav1.DeleteOptions
		patch  metav1.PatchOptions
		apply  metav1.ApplyOptions
	)
	fill(t, &get)
	fill(t, &list, "Watch")
	fill(t, &create)
	fill(t, &update)
	fill(t, &remove)
	fill(t, &patch)
	fill(t, &apply)
	strict := apply.ToPatchOptions()
	strict.FieldValidation = metav1.FieldValidationStrict
	config := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "client.example.com/v1", "kind": "ClientSite", "metadata": map[string]any{"name": "a"},
	}}
	const body = `{"apiVersion":"client.example.com/v1","kind":"ClientSite","metadata":{"name":"a"}}`
	for name, tt := range map[string]struct {
		call func() error
		want any
	}{
		"get":          {func() error { return errOf(sites.Get(ctx, "a", get)) }, &get},
		"list":         {func() error { return errOf(sites.List(ctx, list)) }, &list},
		"create":       {func() error { return errOf(sites.Create(ctx, site, create)) }, &create},
		"update":       {func() error { return errOf(sites.Update(ctx, site, update)) }, &update},
		"status":       {func() error { return errOf(sites.UpdateStatus(ctx, site, update)) }, []any{"status", &update}},
		"delete":       {func() error { return sites.Delete(ctx, "a", remove) }, &remove},
		"collection":   {func() error { return sites.DeleteCollection(ctx, remove, list) }, []any{&remove, &list}},
		"patch":        {func() error { return errOf(sites.Patch(ctx, "a", types.JSONPatchType, []byte("[]"), patch)) }, sentPatch{types.JSONPatchType, "[]", &patch}},
		"patch status": {func() error { return errOf(sites.Patch(ctx, "a", types.JSONPatchType, []byte("[]"), patch, "status")) }, []any{"status", sentPatch{types.JSONPatchType, "[]", &patch}}},
		"patch scale":  {func() error { return errOf(sites.Patch(ctx, "a", types.JSONPatchType, []byte("[]"), patch, "scale")) }, []any{"scale", sentPatch{types.JSONPatchType, "[]", &patch}}},
		"apply":        {func() error { return errOf(sites.Apply(ctx, config, apply)) }, sentPatch{types.ApplyPatchType, body, &strict}},
		"apply status": {func() error { return errOf(sites.ApplyStatus(ctx, config, apply)) }, []any{"status", sentPatch{types.ApplyPatchType, body, &strict}}},
	} {
		got = nil
		if err := tt.call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: options (-given +sent):\n%s", name, diff)
		}
	}
}

func errOf(_ any, err error) error { return err }

type sentPatch struct {
	Type    types.PatchType
	Data    string
	Options *metav1.PatchOptions
}

func patched(t *testing.T, obj client.Object, patch client.Patch, opts *metav1.PatchOptions) sentPatch {
	t.Helper()
	data, err := patch.Data(obj)
	if err != nil {
		t.Error(err)
	}
	if obj.GetName() != "a" || obj.GetNamespace() != "ns" {
		t.Errorf("patch of %s/%s", obj.GetNamespace(), obj.GetName())
	}
	return sentPatch{patch.Type(), string(data), opts}
}

// TestClientWrappers checks that the wrappers of controller-runtime apply to each write,
// that selectors work on a fake, and that the objects given stay as they are.
//
// Proves CK1.
func TestClientWrappers(t *testing.T) {
	ctx := t.Context()
	base := fakeFor(t)
	sites := newSites(t, client.WithFieldOwner(base, "owner")).Namespace("ns")
	site := &clientSite{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "1"}}}
	before := site.DeepCopy()
	created, err := sites.Create(ctx, site, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if created.ResourceVersion == "" || created.GroupVersionKind() != clientSiteKind() || created.Namespace != "ns" {
		t.Errorf("created %+v", created)
	}
	if _, err := sites.Update(ctx, created, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, site); diff != "" {
		t.Errorf("Create changed the object:\n%s", diff)
	}
	b, err := sites.Create(ctx, &clientSite{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	list, err := sites.List(ctx, metav1.ListOptions{LabelSelector: "l=1"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Errorf("list: %+v, %v", list, err)
	}
	dry := newSites(t, client.NewDryRunClient(base)).Namespace("ns")
	if err := dry.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := dry.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"host":"dry"}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	if got, err := sites.Get(ctx, "a", metav1.GetOptions{}); err != nil || got.Spec.Host != "" {
		t.Errorf("a dry run changed the object: %+v, %v", got, err)
	}
	if err := sites.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "l=1"}); err != nil {
		t.Error(err)
	}
	list, err = sites.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].UID != b.UID || list.Items[0].Name != "b" {
		t.Errorf("after the deletion of the collection l=1: %+v, %v", list, err)
	}
	if _, err := sites.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after the deletion: %v", err)
	}
	if _, err := json.Marshal(list); err != nil {
		t.Error(err)
	}
}

// TestClientListMeta checks that the metadata of a list is that of the response.
//
// Proves CK1.
func TestClientListMeta(t *testing.T) {
	want := metav1.ListMeta{
		ResourceVersion: "7", Continue: "c", RemainingItemCount: new(int64(3)),
		ShardInfo: &metav1.ShardInfo{Selector: "s"},
	}
	c := interceptor.NewClient(fakeFor(t), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			switch list := list.(type) {
			case *clientSiteList:
				list.ListMeta = want
				list.Items = []clientSite{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
			case *unstructured.UnstructuredList:
				metadata, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&want)
				if err != nil {
					return err
				}
				list.Object = map[string]any{"metadata": metadata}
				list.Items = []unstructured.Unstructured{{Object: map[string]any{"metadata": map[string]any{"name": "a"}}}}
			}
			return nil
		},
	})
	typed, err := newSites(t, c).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(typed.Items) != 1 || typed.Items[0].Name != "a" || !cmp.Equal(typed.ListMeta, want) {
		t.Errorf("typed: %+v, %v", typed, err)
	}
	sites, err := managerkit.NewClientForKind[*unstructured.Unstructured](c, readerOnly{c}, clientSiteKind())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := sites.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(plain.Items) != 1 || plain.Items[0].GroupVersionKind() != clientSiteKind() || !cmp.Equal(plain.ListMeta, want) {
		t.Errorf("unstructured: %+v, %v", plain, err)
	}
	noList := runtime.NewScheme()
	noList.AddKnownTypeWithName(clientSiteKind(), &clientSite{})
	_, err = newSites(t, fake.NewClientBuilder().WithScheme(noList).Build()).List(t.Context(), metav1.ListOptions{})
	if err == nil || !strings.Contains(err.Error(), "Kind=ClientSiteList: register the list of *managerkit_test.clientSite") {
		t.Errorf("a scheme without the list: %v", err)
	}
}

// TestClientOfAFakeWithoutMapper checks that the default fake of controller-runtime,
// whose RESTMapper knows no kind, works.
func TestClientOfAFakeWithoutMapper(t *testing.T) {
	sites := newSites(t, fake.NewClientBuilder().WithScheme(clientScheme(t)).Build()).Namespace("ns")
	if _, err := sites.Create(t.Context(), &clientSite{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := sites.Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
}
