package operator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// deletedBox is an API server with one box, which is being deleted. It responds with the status to a patch.
func deletedBox(patch int) roundTrip {
	return servedBox(patch, `{"apiVersion":"box.example.com/v1","kind":"Box","metadata":{"namespace":"default","name":"a","uid":"u1","resourceVersion":"2",
		"deletionTimestamp":"2000-01-01T00:00:00Z","finalizers":["`+boxFinalizer+`"]},"spec":{}}`)
}

// servedBox is an API server with one box. It responds with the status to a patch.
func servedBox(patch int, box string) roundTrip {
	return func(r *http.Request) (*http.Response, error) {
		box := strings.ReplaceAll(box, "\n", "")
		resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
		switch {
		case r.Method == http.MethodPatch:
			resp.StatusCode = patch
			resp.Body = io.NopCloser(strings.NewReader(box))
		case strings.HasSuffix(r.URL.Path, "/boxes"):
			events := `{"type":"ADDED","object":` + box + "}\n" + strings.NewReplacer("%s", "Box", `"v1"`, `"box.example.com/v1"`).Replace(initialEnd) + "\n"
			resp.Body = stream{strings.NewReader(events), r.Context()}
		default:
			resp.Body = io.NopCloser(strings.NewReader(`{"kind":"APIResourceList","groupVersion":"box.example.com/v1","resources":[
				{"name":"boxes","kind":"Box","namespaced":true,"verbs":["list","watch"]},{"name":"boxes/status","kind":"Box","namespaced":true,"verbs":["patch"]}]}`))
		}
		return resp, nil
	}
}

// An error beside the steps that block a cleanup is one of the call, and a status that is not written is written soon.
func TestCleanFails(t *testing.T) {
	waits := &finalizer.BlockedError{Steps: []finalizer.BlockedStep{{Name: "bucket", Message: "waits"}}, After: time.Hour}
	for name, tc := range map[string]struct {
		patch   int
		cleanup func(*Box) error
		want    string // in the error of a call
		result  string
		calls   int // within a minute
	}{
		"waits":           {http.StatusOK, func(*Box) error { return waits }, "", "requeue", 1},
		"waits and fails": {http.StatusOK, func(*Box) error { return errors.Join(waits, errors.New("no DNS")) }, "no DNS", "error", 5},
		"waits after a change": {http.StatusOK, func(b *Box) error {
			b.Labels = map[string]string{"a": "b"}
			return waits
		}, "Cleanup changed metadata.labels", "error", 5},
		"no status": {http.StatusInternalServerError, func(*Box) error { return waits }, "status", "error", 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				op, err := operator.New(&rest.Config{Host: "http://127.0.0.1:1", Transport: deletedBox(tc.patch)}, operator.Options{Name: "x"})
				if err != nil {
					t.Fatal(err)
				}
				c := operator.Kind(op, boxVersion.WithResource("boxes"), operator.Reconciler[*Box]{
					Reconcile: func(context.Context, *Box) (reconcile.Result, error) { return reconcile.Result{}, nil },
					Finalizer: boxFinalizer,
					Cleanup:   func(_ context.Context, b *Box) error { return tc.cleanup(b) },
				})
				var got []string
				c.Loop.Hook = func(ctx context.Context, _ types.NamespacedName) (context.Context, func(string, error)) {
					return ctx, func(result string, err error) { got = append(got, fmt.Sprint(result, " ", err)) }
				}
				start(t, op, testlog.New())
				time.Sleep(time.Minute)
				synctest.Wait()
				if len(got) < tc.calls || tc.calls == 1 && len(got) > 1 {
					t.Fatalf("%d calls in a minute, want %d: %q", len(got), tc.calls, got)
				}
				if !strings.HasPrefix(got[0], tc.result+" ") || !strings.Contains(got[0], tc.want) {
					t.Errorf("the call is %q, want %s with %q", got[0], tc.result, tc.want)
				}
			})
		})
	}
}
