package migrate_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/crd/migrate"
)

// newFake returns a dynamic client with a definition that stores v1alpha1 and v1, and objects.
func newFake(names ...string) *fake.FakeDynamicClient {
	d := normal(definition("example.com", "websites", "Website"))
	for _, v := range d["spec"].(m)["versions"].([]any) {
		v.(m)["storage"] = v.(m)["name"] == "v1"
	}
	d["metadata"] = m{"name": "websites.example.com", "uid": "d", "generation": int64(1), "resourceVersion": "1"}
	d["status"] = m{"storedVersions": []any{"v1alpha1", "v1"}, "conditions": []any{m{"type": "Established", "status": "True"}}}
	all := []runtime.Object{&unstructured.Unstructured{Object: d}}
	for _, name := range names {
		all = append(all, &unstructured.Unstructured{Object: m{"apiVersion": "example.com/v1", "kind": "Website", "metadata": m{
			"namespace": "shop", "name": name, "uid": name, "resourceVersion": "1",
			"managedFields": []any{m{"manager": "one", "operation": "Apply", "apiVersion": "example.com/v1alpha1", "fieldsV1": m{"f:spec": m{"f:a": m{}}}}},
		}, "spec": m{"a": "1"}}})
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		definitions(): "CustomResourceDefinitionList", {Group: "example.com", Version: "v1", Resource: "websites"}: "WebsiteList",
	}, all...)
	client.PrependReactor("patch", "websites", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a := action.(clienttesting.PatchAction)
		if a.GetPatchType() != types.ApplyPatchType {
			return false, nil, nil
		}
		obj, err := client.Tracker().Get(action.GetResource(), action.GetNamespace(), a.GetName()) // the apply has no fields
		return true, obj, err
	})
	return client
}

// helm returns a reactor that adds the label of Helm to an object.
func helm(client *fake.FakeDynamicClient) clienttesting.ReactionFunc {
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		obj, err := client.Tracker().Get(action.GetResource(), "", action.(clienttesting.GetAction).GetName())
		if err != nil {
			return true, nil, err
		}
		d := obj.(*unstructured.Unstructured).DeepCopy()
		d.SetLabels(map[string]string{"app.kubernetes.io/managed-by": "Helm"})
		return true, d, nil
	}
}

// writes returns the resources and the times of the writes of a client since start.
func writes(client *fake.FakeDynamicClient) func() []time.Duration {
	start := time.Now()
	var times []time.Duration
	client.PrependReactor("patch", "websites", func(clienttesting.Action) (bool, runtime.Object, error) {
		times = append(times, time.Since(start))
		return false, nil, nil
	})
	return func() []time.Duration { return times }
}

// The first object is written after Settle, and the others at the rate.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFake("a", "b", "c")
		times := writes(client)
		p := &progress{}
		_, err := (&migrate.Migrator{Client: client, Definition: "websites.example.com", Rate: 2, Metrics: p}).Once(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "times of the writes", []time.Duration{2 * time.Minute, 2*time.Minute + 500*time.Millisecond, 2*time.Minute + time.Second}, times())
		equal(t, "progress", []string{"0 0 false", "3 0 false", "3 0 true"}, p.calls)
	})
}

// If an object fails, Run tries again after Retry. If ctx is done, it returns nil.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFake("a")
		times := writes(client)
		failures := 2
		client.PrependReactor("patch", "websites", func(clienttesting.Action) (bool, runtime.Object, error) {
			if failures--; failures < 0 {
				return false, nil, nil
			}
			return true, nil, &statusError{metav1.Status{Code: 500, Message: "the webhook is down"}}
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		p := &progress{}
		go func() {
			done <- (&migrate.Migrator{Client: client, Definition: "websites.example.com", Metrics: p}).Run(ctx)
		}()
		time.Sleep(2*time.Minute + time.Second)
		synctest.Wait()
		equal(t, "progress after a failure", "1 1 false", p.last())
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		equal(t, "progress after the second failure", "1 1 false", p.last())
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		equal(t, "progress at the end", "1 0 true", p.last())
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		equal(t, "the number of writes", 1, len(times()))
	})
}

// An API server cannot call the conversion webhook for an hour. Run sends the request again at most
// half a minute after the end of that, and the condition has the reason Waiting meanwhile.
//
// Proves VM8.
func TestOutage(t *testing.T) {
	const (
		hour = time.Hour
		url  = `{"url":"https://hook/"}`
	)
	for name, tt := range map[string]struct {
		verb, failure string
		code          int32
		config, name  string // of the webhook
	}{
		"no connection":    {"patch", `conversion webhook for example.com/v1alpha1, Kind=Website failed: Post "https://hook/": dial tcp: connection refused`, 500, url, "https://hook/"},
		"502":              {"patch", `object not decodable revision=2: conversion webhook for example.com/v1alpha1, Kind=Website failed: an error on the server ("") has prevented the request from succeeding`, 500, url, "https://hook/"},
		"504":              {"patch", "conversion webhook for example.com/v1alpha1, Kind=Website failed: the server was unable to return a response in the time allotted, but may still be processing the request", 500, url, "https://hook/"},
		"429":              {"patch", "conversion webhook for example.com/v1alpha1, Kind=Website failed: the server has received too many requests and has asked us to try again later", 500, `{"service":{"namespace":"shop","name":"hook","port":443}}`, "shop/hook"},
		"list":             {"list", `conversion webhook for example.com/v1alpha1, Kind=Website failed: Post "https://hook/": EOF`, 500, url, "https://hook/"},
		"list, cold cache": {"list", "storage is (re)initializing: conversion webhook for example.com/v1alpha1, Kind=Website failed: spec.a: wrong", 429, url, "https://hook/"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newFake("a", "b")
				webhook := []byte(`{"spec":{"conversion":{"strategy":"Webhook","webhook":{"clientConfig":` + tt.config + `}}}}`)
				if _, err := client.Resource(definitions()).Patch(t.Context(), "websites.example.com", types.MergePatchType, webhook, metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				client.PrependReactor(tt.verb, "websites", func(clienttesting.Action) (bool, runtime.Object, error) {
					if time.Since(start) >= hour {
						return false, nil, nil
					}
					status := metav1.Status{Code: tt.code, Message: tt.failure}
					if tt.code == 429 {
						status.Reason = metav1.StatusReasonTooManyRequests
					}
					return true, nil, &statusError{status}
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				p := &progress{}
				go func() {
					done <- (&migrate.Migrator{Client: client, Definition: "websites.example.com", Metrics: p}).Run(ctx)
				}()
				reason := func() (reason, message any) {
					d, err := client.Resource(definitions()).Get(t.Context(), "websites.example.com", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					conditions, _, _ := unstructured.NestedSlice(d.Object, "status", "conditions")
					last := conditions[len(conditions)-1].(m)
					return last["reason"], last["message"]
				}
				time.Sleep(hour - time.Second)
				synctest.Wait()
				if reason, message := reason(); reason != "Waiting" || !strings.Contains(message.(string), tt.failure) || !strings.Contains(message.(string), "the conversion webhook "+tt.name+" fails: repair it") {
					t.Errorf("the condition is %s %s", reason, message)
				}
				time.Sleep(32 * time.Second)
				synctest.Wait()
				if reason, _ := reason(); reason != "Migrated" || p.last() != "2 0 true" {
					t.Errorf("half a minute after the outage the condition is %s, and the progress %s", reason, p.last())
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// If the API server has forgotten the version of the first page, the list begins again, and an object
// is written once.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFake("a", "b", "c")
		pages := []string{"a", "expired", "a", "b", "c"} // the fake does not show the token
		client.PrependReactor("list", "websites", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if len(pages) == 0 {
				return true, nil, &statusError{metav1.Status{Code: 500, Message: "one more list"}}
			}
			name := pages[0]
			if pages = pages[1:]; name == "expired" {
				return true, nil, apierrors.NewResourceExpired("the token is too old")
			}
			page := &unstructured.UnstructuredList{Object: m{"apiVersion": "example.com/v1", "kind": "WebsiteList"}}
			obj, err := client.Tracker().Get(action.GetResource(), "shop", name)
			if err != nil {
				return true, nil, err
			}
			page.Items = append(page.Items, *obj.(*unstructured.Unstructured))
			page.SetContinue(map[string]string{"a": "1", "b": "2"}[name])
			return true, page, nil
		})
		var written []string
		client.PrependReactor("patch", "websites", func(action clienttesting.Action) (bool, runtime.Object, error) {
			written = append(written, action.(clienttesting.PatchAction).GetName())
			return false, nil, nil
		})
		report, err := (&migrate.Migrator{Client: client, Definition: "websites.example.com"}).Once(t.Context())
		if err != nil || report.Objects != 3 || len(pages) > 0 {
			t.Errorf("%+v, %v", report, err)
		}
		equal(t, "the written objects", []string{"a", "b", "c"}, written)
	})
}

// A pager records the limits of lists of objects. The first page has an object that is small in JSON
// and large in memory.
type pager struct {
	dynamic.Interface
	limits []int64
}

func (p *pager) Resource(resource schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	client := p.Interface.Resource(resource)
	if resource == definitions() {
		return client
	}
	return &paged{client, p}
}

type paged struct {
	dynamic.NamespaceableResourceInterface
	p *pager
}

func (p *paged) List(ctx context.Context, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	p.p.limits = append(p.p.limits, opts.Limit)
	page := len(p.p.limits)
	obj, err := p.Namespace("shop").Get(ctx, []string{"a", "b", "c"}[page-1], metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if page == 1 {
		empty := make([]any, 300_000) // 900 kB of JSON
		for i := range empty {
			empty[i] = m{}
		}
		obj.Object["spec"] = m{"items": empty}
	}
	list := &unstructured.UnstructuredList{Object: m{"apiVersion": "example.com/v1", "kind": "WebsiteList"}, Items: []unstructured.Unstructured{*obj}}
	list.SetContinue([]string{"1", "2", ""}[page-1])
	return list, nil
}

// After a page with a large object the next one has one object.
//
// Proves CK3.
func TestHostilePages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &pager{Interface: newFake("a", "b", "c")}
		report, err := (&migrate.Migrator{Client: client, Definition: "websites.example.com"}).Once(t.Context())
		if err != nil || report.Objects != 3 {
			t.Errorf("%+v, %v", report, err)
		}
		equal(t, "the limits of the pages", []int64{5, 1, 100}, client.limits)
	})
}

// A definition that cannot be migrated is named, with the cure, in the error and the condition.
func TestWrongDefinition(t *testing.T) {
	for want, change := range map[string]func(d m){
		"CustomResourceDefinition websites.example.com: it is being deleted": func(d m) { d["metadata"].(m)["deletionTimestamp"] = "2026-01-01T00:00:00Z" },
		"it is not established":                            func(d m) { d["status"].(m)["conditions"] = []any{} },
		`the storage version "v1" is not served: serve it`: func(d m) { d["spec"].(m)["versions"].([]any)[2].(m)["served"] = false },
	} {
		client := newFake("a")
		obj, err := client.Resource(definitions()).Get(t.Context(), "websites.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(obj.Object)
		if _, err := client.Resource(definitions()).Update(t.Context(), obj, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err = (&migrate.Migrator{Client: client, Definition: "websites.example.com"}).Once(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
			continue
		}
		text := err.Error()
		if obj, err = client.Resource(definitions()).Get(t.Context(), "websites.example.com", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
		last := conditions[len(conditions)-1].(m)
		equal(t, "the condition", []any{"StoredVersionsMigrated", "Blocked", text}, []any{last["type"], last["reason"], last["message"]})
	}
	_, err := (&migrate.Migrator{Client: newFake(), Definition: "others.example.com"}).Once(t.Context())
	if !apierrors.IsNotFound(err) || !strings.HasPrefix(err.Error(), "migrate: read CustomResourceDefinition others.example.com: ") {
		t.Errorf("an absent definition: %v", err)
	}
}

// Run begins as soon as a definition is established, and does not wait for Retry.
func TestEstablished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFake("a")
		change := func(conditions []any) {
			obj, err := client.Resource(definitions()).Get(t.Context(), "websites.example.com", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			obj.Object["status"].(m)["conditions"] = conditions
			if _, err := client.Resource(definitions()).Update(t.Context(), obj, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		change([]any{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		p := &progress{}
		go func() {
			done <- (&migrate.Migrator{Client: client, Definition: "websites.example.com", Metrics: p}).Run(ctx)
		}()
		time.Sleep(time.Second)
		equal(t, "progress before", "0 0 false", p.last())
		change([]any{m{"type": "Established", "status": "True"}})
		time.Sleep(2*time.Minute + time.Second) // Settle
		synctest.Wait()
		equal(t, "progress after", "1 0 true", p.last())
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// So does it if the definition is established before the condition Blocked is written, which is then a
// conflict.
func TestEstablishedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFake("a")
		set := func(version string, conditions ...any) {
			obj, err := client.Tracker().Get(definitions(), "", "websites.example.com")
			if err != nil {
				t.Fatal(err)
			}
			d := obj.DeepCopyObject().(*unstructured.Unstructured)
			d.SetResourceVersion(version)
			d.Object["status"].(m)["conditions"] = conditions
			if err := client.Tracker().Update(definitions(), d, ""); err != nil {
				t.Fatal(err)
			}
		}
		set("1")
		conflicts := 0
		client.PrependReactor("patch", "customresourcedefinitions", func(clienttesting.Action) (bool, runtime.Object, error) {
			if conflicts++; conflicts > 1 {
				return false, nil, nil
			}
			set("2", m{"type": "Established", "status": "True"})
			return true, nil, apierrors.NewConflict(definitions().GroupResource(), "websites.example.com", errors.New("it has changed"))
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		p := &progress{}
		go func() {
			done <- (&migrate.Migrator{Client: client, Definition: "websites.example.com", Metrics: p}).Run(ctx)
		}()
		time.Sleep(2*time.Minute + time.Second) // Settle
		synctest.Wait()
		equal(t, "progress", "1 0 true", p.last())
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

type statusError struct{ status metav1.Status }

func (e *statusError) Error() string         { return e.status.Message }
func (e *statusError) Status() metav1.Status { return e.status }

// Each error names the argument and the cure, and no request is sent.
//
// Proves CK2.
func TestBadInput(t *testing.T) {
	client := newFake()
	resource := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "websites"}
	once := func(m migrate.Migrator) func() error {
		return func() error {
			_, err := m.Once(t.Context())
			if runErr := m.Run(t.Context()); runErr == nil || runErr.Error() != err.Error() {
				t.Errorf("Run: %v", runErr)
			}
			return err
		}
	}
	install := func(manager, data string) func() error {
		return func() error { return migrate.Install(t.Context(), client, manager, []byte(data)) }
	}
	const head = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
	for name, tt := range map[string]struct {
		call func() error
		want string
	}{
		"no client":            {once(migrate.Migrator{Definition: "websites.example.com"}), "Client is nil: pass a dynamic client"},
		"no definition":        {once(migrate.Migrator{Client: client}), `Definition is "": use the name`},
		"no group":             {once(migrate.Migrator{Client: client, Definition: "websites"}), `Definition is "websites": use the name`},
		"a negative time":      {once(migrate.Migrator{Client: client, Definition: "websites.example.com", Settle: -1}), "Settle is -1ns"},
		"require no client":    {func() error { return migrate.Require(t.Context(), nil, resource) }, "client is nil"},
		"require no version":   {func() error { return migrate.Require(t.Context(), client, resource.GroupResource().WithVersion("")) }, "set its group, version and plural name"},
		"install no client":    {func() error { return migrate.Install(t.Context(), nil, "m", nil) }, "client is nil"},
		"install no manager":   {install("", ""), "field manager"},
		"install nothing":      {install("m", ""), `apiVersion "" and kind "": pass one CustomResourceDefinition`},
		"install no YAML":      {install("m", "{"), "not valid YAML"},
		"install a pod":        {install("m", "apiVersion: v1\nkind: Pod\n"), `kind "Pod": pass one`},
		"install another name": {install("m", head+"metadata: {name: x}\nspec: {group: example.com, names: {plural: websites}}"), `metadata.name "x": use "websites.example.com"`},
		"install two":          {install("m", head+"---\n"+head), "followed by another YAML document: pass one CustomResourceDefinition"},
		"install two flows":    {install("m", "--- {a: b}\n--- {c: d} # e\n"), "followed by another YAML document: pass one CustomResourceDefinition"},
		"install after an end": {install("m", head+"...\n"+head), "followed by another YAML document: pass one CustomResourceDefinition"},
		"install two of CRLF":  {install("m", strings.ReplaceAll(head+"---\n"+head, "\n", "\r\n")), "followed by another YAML document: pass one CustomResourceDefinition"},
		"install a bad second": {install("m", head+"---\n{"), "not valid YAML"},
		"install two versions": {install("m", "%YAML 1.1\n---\n"+head+"...\n%YAML 1.1\n---\n"+head), "followed by another YAML document: pass one CustomResourceDefinition"},
		"install YAML 1.2":     {install("m", "%YAML 1.2\n---\n"+head), "not valid YAML"},
		"install no document":  {install("m", "%YAML 1.1\n"), "not valid YAML"},
		"install comments":     {install("m", "# a\n---\n# b\n"), `kind "": pass one`},
		"install no version":   {install("m", head+"metadata: {name: websites.example.com}\nspec: {group: example.com, names: {plural: websites}}"), "serves no version"},
		"install a large one":  {install("m", strings.Repeat("x", 4<<20)), "has 4194304 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tt.call(); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "migrate: ") {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
	if n := len(client.Actions()); n > 0 {
		t.Errorf("%d requests: %v", n, client.Actions())
	}
}

// Beside one definition, Install accepts documents without content.
func TestInstallDocuments(t *testing.T) {
	const text = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: websites.example.com
spec:
  group: example.com
  names: {kind: Website, plural: websites}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        description: |
          A text with

          ---
          a line
`
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{
		text, string(data), "---\n" + text + "---\n", "# a comment\n---\n\n--- # another\n" + text + "...\n---\n# the end", strings.ReplaceAll("---\n"+text+"---\n", "\n", "\r\n"),
		"%YAML 1.1\n---\n" + text, "# a comment\n\n%YAML 1.1\n%TAG !x! tag:example.com,2000:\n--- # another\n" + text + "...\n%YAML 1.1\n---\n# the end",
		strings.ReplaceAll("%YAML 1.1\n---\n"+text, "\n", "\r\n"),
	} {
		client := fake.NewSimpleDynamicClient(runtime.NewScheme())
		applied := errors.New("applied")
		client.PrependReactor("patch", "customresourcedefinitions", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if patch := action.(clienttesting.PatchAction).GetPatch(); !strings.Contains(string(patch), `"A text with\n\n---\na line\n"`) {
				t.Errorf("the definition is %s", patch)
			}
			return true, nil, applied
		})
		if err := migrate.Install(t.Context(), client, "m", []byte(data)); !errors.Is(err, applied) {
			t.Errorf("%v of %q", err, data)
		}
	}
}

// The error of an Install that a stop interrupts has the name of the definition and the cause.
func TestInstallStopped(t *testing.T) {
	const definition = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "websites.example.com"},
		"spec": {"group": "example.com", "names": {"kind": "Website", "plural": "websites"}, "versions": [{"name": "v1", "served": true, "storage": true}]}}`
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{definitions(): "CustomResourceDefinitionList"})
		client.PrependReactor("patch", "customresourcedefinitions", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, new(unstructured.Unstructured), nil // no event shows that it is established
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("received SIGTERM")
		time.AfterFunc(time.Minute, func() { cancel(stop) })
		err := migrate.Install(ctx, client, "m", []byte(definition))
		if want := "migrate: install CustomResourceDefinition websites.example.com: received SIGTERM"; !errors.Is(err, stop) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	})
}

// Names and managers of objects are bounded in errors, conditions and reports.
//
// Proves CK3.
func TestHostileNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFake("a")
		long := strings.Repeat("x\n", 1<<16)
		client.PrependReactor("patch", "websites", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, &statusError{metav1.Status{Code: 422, Message: long}}
		})
		_, err := (&migrate.Migrator{Client: client, Definition: "websites.example.com"}).Once(t.Context())
		var blocked *migrate.BlockedError
		if !errors.As(err, &blocked) || len(err.Error()) > 8<<10 || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%.100v", err)
		}
		d, err := client.Resource(definitions()).Get(t.Context(), "websites.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		conditions, _, _ := unstructured.NestedSlice(d.Object, "status", "conditions")
		if text := conditions[1].(m)["message"].(string); len(text) > 32<<10 || !strings.Contains(text, "shop/a: ") {
			t.Errorf("the condition has %d bytes", len(text))
		}
	})
}

// The fields of a version that another one lacks.
func TestLost(t *testing.T) {
	text := m{"type": "string"}
	properties := func(p m) m { return m{"type": "object", "properties": p} }
	free := m{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	for name, tt := range map[string]struct {
		from, to m
		want     string
	}{
		"equal":               {properties(m{"spec": properties(m{"a": text})}), properties(m{"spec": properties(m{"a": text, "b": text})}), ""},
		"a field":             {properties(m{"spec": properties(m{"a": text, "b": text})}), properties(m{"spec": properties(m{"a": text})}), ".spec.b"},
		"a field of an item":  {properties(m{"l": m{"items": properties(m{"a": text})}}), properties(m{"l": m{"items": properties(m{})}}), ".l[].a"},
		"no items":            {properties(m{"l": m{"items": text}}), properties(m{"l": m{}}), ".l[]"},
		"a map":               {properties(m{"l": m{"additionalProperties": text}}), properties(m{"l": properties(m{"a": text})}), ".l.*"},
		"a field of a value":  {m{"additionalProperties": properties(m{"a": text})}, m{"additionalProperties": properties(m{})}, ".*.a"},
		"a map of anything":   {properties(m{"l": properties(m{"a": text})}), properties(m{"l": m{"additionalProperties": true}}), ""},
		"unknown fields":      {properties(m{"spec": free}), properties(m{"spec": properties(m{"a": text})}), ".spec.*"},
		"unknown fields stay": {properties(m{"spec": properties(m{"a": properties(m{"b": text})})}), properties(m{"spec": free}), ""},
		"a field of a field":  {properties(m{"spec": properties(m{"a": properties(m{"b": text})})}), properties(m{"spec": m{"x-kubernetes-preserve-unknown-fields": true, "properties": m{"a": properties(m{})}}}), ".spec.a.b"},
		"metadata":            {properties(m{"metadata": properties(m{"a": text}), "kind": text}), properties(m{}), ""},
		"no schema":           {nil, nil, ""},
	} {
		if got := migrate.Lost(tt.from, tt.to, ""); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// An API server before Kubernetes 1.37 removes managedFields that it cannot compute. If it does so in the dry run,
// no patch is sent. If it does so in the patch, because the webhook failed since the dry run, they are sent again.
// TestServerWebhookOutage and TestServerInvalid meet such servers in make versions.
//
// Proves VM1.
func TestRemovedManagedFields(t *testing.T) {
	for name, tt := range map[string]struct {
		removes func(dry bool, n int) bool // n counts the dry runs, or the others, from 1
		want    []string
		err     string
	}{
		"never":             {func(bool, int) bool { return false }, []string{"dry 1", "patch 1"}, ""},
		"in each":           {func(bool, int) bool { return true }, []string{"dry 1", "dry 1", "dry 1"}, "shop/a: the API server does not store changes of metadata.managedFields"},
		"in one dry run":    {func(dry bool, n int) bool { return dry && n == 1 }, []string{"dry 1", "dry 1", "patch 1"}, ""},
		"after the dry run": {func(dry bool, n int) bool { return !dry && n <= 2 }, []string{"dry 1", "patch 1", "patch 2", "patch 3"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newFake("a")
				d, err := client.Resource(definitions()).Get(t.Context(), "websites.example.com", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range d.Object["spec"].(m)["versions"].([]any) {
					v.(m)["served"] = v.(m)["name"] == "v1"
				}
				if _, err := client.Resource(definitions()).Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				var got []string
				calls := map[bool]int{}
				client.PrependReactor("patch", "websites", func(action clienttesting.Action) (bool, runtime.Object, error) {
					a := action.(clienttesting.PatchActionImpl)
					dry := len(a.PatchOptions.DryRun) > 0
					calls[dry]++
					stored, err := client.Tracker().Get(a.GetResource(), a.GetNamespace(), a.GetName())
					if err != nil {
						return true, nil, err
					}
					obj := stored.(*unstructured.Unstructured).DeepCopy()
					got = append(got, map[bool]string{true: "dry ", false: "patch "}[dry]+obj.GetResourceVersion())
					if test := `{"op":"test","path":"/metadata/resourceVersion","value":"` + obj.GetResourceVersion() + `"}`; !strings.Contains(string(a.Patch), strings.TrimSuffix(test, "}")) {
						t.Errorf("the patch of version %s is %s", obj.GetResourceVersion(), a.Patch)
					}
					if tt.removes(dry, calls[dry]) {
						obj.SetManagedFields(nil)
					} else {
						obj.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "one", APIVersion: "example.com/v1"}})
					}
					if !dry {
						obj.SetResourceVersion(strconv.Itoa(calls[dry] + 1))
						return true, obj, client.Tracker().Update(a.GetResource(), obj, a.GetNamespace())
					}
					return true, obj, nil
				})
				_, err = (&migrate.Migrator{Client: client, Definition: "websites.example.com"}).Once(t.Context())
				if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got  %v\nwant %s", err, tt.err)
				}
				equal(t, "the requests", tt.want, got)
			})
		})
	}
}
