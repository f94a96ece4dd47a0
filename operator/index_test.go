package operator_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// applies is an API server with a Pod and no ConfigMap, which stores what is applied as it is.
func applies(r *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
	events := func(text, kind string) {
		text = strings.ReplaceAll(text, "\n", "") + "\n" + strings.Replace(initialEnd, "%s", kind, 1) + "\n" // an event is a line
		resp.Body = stream{strings.NewReader(strings.TrimPrefix(text, "\n")), r.Context()}
	}
	switch {
	case r.Method == http.MethodPatch:
		var obj map[string]any
		if err := json.NewDecoder(r.Body).Decode(&obj); err != nil {
			return nil, err
		}
		metadata := obj["metadata"].(map[string]any)
		metadata["uid"], metadata["resourceVersion"] = "u9", "9"
		text, err := json.Marshal(obj)
		if err != nil {
			return nil, err
		}
		resp.Body = io.NopCloser(strings.NewReader(string(text)))
	case strings.Contains(r.URL.Path, "/configmaps/"):
		resp.StatusCode = http.StatusNotFound
		resp.Body = io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"details":{"name":"` + path.Base(r.URL.Path) + `"}}`))
	case strings.HasSuffix(r.URL.Path, "/pods"):
		events(controlled, "Pod")
	case strings.HasSuffix(r.URL.Path, "/configmaps"):
		events("", "ConfigMap")
	default:
		resp.Body = io.NopCloser(strings.NewReader(`{"kind":"APIResourceList","groupVersion":"v1","resources":[
			{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"]},{"name":"configmaps","kind":"ConfigMap","namespaced":true,"verbs":["list","watch","patch"]}]}`))
	}
	return resp, nil
}

// The function of an index panics for a child of the call: ByIndex returns an error that names it, and the others.
func TestByIndexPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op, err := operator.New(&rest.Config{Host: "http://127.0.0.1:1", Transport: roundTrip(applies)}, operator.Options{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		var c *operator.Controller
		var configMaps *operator.Reader[*corev1.ConfigMap]
		c = operator.Kind(op, corev1.SchemeGroupVersion.WithResource("pods"), operator.Reconciler[*corev1.Pod]{
			ReadOnly: true,
			Reconcile: func(ctx context.Context, pod *corev1.Pod) (reconcile.Result, error) {
				for _, name := range []string{"bad", "good"} {
					if _, err := c.Apply(ctx, applycorev1.ConfigMap(name, pod.Namespace).WithData(map[string]string{"name": name})); err != nil {
						t.Errorf("Apply: %v", err)
					}
				}
				all, err := configMaps.ByIndex(ctx, "name", "good")
				if len(all) != 1 || all[0].Name != "good" || err == nil || !strings.Contains(err.Error(), "the function of the index panics for the applied *v1.ConfigMap default/bad") || !operator.Failed(ctx) {
					t.Errorf("ByIndex() = %v, %v, and the call has failed: %t", all, err, operator.Failed(ctx))
				}
				calls++ // without a panic
				return reconcile.Result{}, nil
			},
		})
		configs := corev1.SchemeGroupVersion.WithResource("configmaps")
		operator.Children(c, configs, applycorev1.ExtractConfigMap)
		configMaps = operator.Reads(c, configs, operator.Reading[*corev1.ConfigMap]{Indexes: map[string]func(*corev1.ConfigMap) []string{
			"name": func(cm *corev1.ConfigMap) []string {
				if cm.Name == "bad" {
					panic("boom")
				}
				return []string{cm.Data["name"]}
			},
		}})
		start(t, op, testlog.New())
		time.Sleep(time.Second)
		synctest.Wait()
		if calls != 1 {
			t.Errorf("%d calls, want 1", calls)
		}
	})
}
