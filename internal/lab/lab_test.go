package lab

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// definitions is an API server with the definition "things". Each watch has the next of watches
// and then ends; a further one stays open.
type definitions struct {
	dynamic.ResourceInterface
	stored  *unstructured.Unstructured
	watches [][]watch.Event
	failure error // of each list
}

func (d *definitions) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	if d.failure != nil {
		return nil, d.failure
	}
	list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{*d.stored}}
	list.SetResourceVersion(d.stored.GetResourceVersion())
	return list, nil
}

func (d *definitions) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	if len(d.watches) == 0 {
		return watch.NewFake(), nil
	}
	events := make(chan watch.Event, len(d.watches[0]))
	for _, event := range d.watches[0] {
		d.stored = event.Object.(*unstructured.Unstructured)
		events <- event
	}
	close(events)
	d.watches = d.watches[1:]
	return watch.NewProxyWatcher(events), nil
}

func definition(version string, conditions ...any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "things", "uid": "1", "resourceVersion": version},
		"status":   map[string]any{"conditions": conditions},
	}}
}

func TestEstablished(t *testing.T) {
	names := map[string]any{"type": "NamesAccepted", "status": "True"}
	no := map[string]any{"type": "Established", "status": "False"}
	yes := map[string]any{"type": "Established", "status": "True"}
	started := definition("1", names, no)
	modified := func(version string, conditions ...any) watch.Event {
		return watch.Event{Type: watch.Modified, Object: definition(version, conditions...)}
	}
	for _, tt := range []struct {
		name string
		definitions
		want []string // parts of the error; nil means none
	}{
		{name: "in the first list", definitions: definitions{stored: definition("1", names, yes)}},
		{name: "in a watch", definitions: definitions{stored: started, watches: [][]watch.Event{{modified("2", names, no), modified("3", names, yes)}}}},
		{name: "after the end of two watches", definitions: definitions{stored: started, watches: [][]watch.Event{{}, {modified("2", names, no)}, {modified("3", names, yes)}}}},
		{name: "never", definitions: definitions{stored: started},
			want: []string{"CustomResourceDefinition things", "deadline exceeded", "Established"}},
		{name: "deleted", definitions: definitions{stored: started, watches: [][]watch.Event{{{Type: watch.Deleted, Object: definition("2", names)}}}},
			want: []string{"CustomResourceDefinition things was deleted", "use an API server"}},
		{name: "forbidden", definitions: definitions{failure: apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, "", errors.New("no right"))},
			want: []string{"CustomResourceDefinition things", "no right"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				err := established(t.Context(), &tt.definitions, "things")
				if (err == nil) != (tt.want == nil) {
					t.Errorf("got %v, want an error with %q", err, tt.want)
				}
				for _, part := range tt.want {
					if err != nil && !strings.Contains(err.Error(), part) {
						t.Errorf("got %v, want an error with %q", err, part)
					}
				}
				if took := time.Since(begin); took > 30*time.Second {
					t.Errorf("took %v, want at most 30s", took)
				}
			})
		})
	}
}
