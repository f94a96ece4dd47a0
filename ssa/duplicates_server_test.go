package ssa_test

import (
	"encoding/json"
	"net/http"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestServerForeignDuplicates: if another manager's list has a key twice, which no apply can express,
// each ApplyChanged applies, and a Memory ends it. A configuration with the key twice is an error.
func TestServerForeignDuplicates(t *testing.T) {
	t.Parallel()
	cfg, applies := testserver.Config(t), 0
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodPatch {
				applies++
			}
			return next.RoundTrip(req)
		})
	})
	deployments := kubernetes.NewForConfigOrDie(cfg).AppsV1().Deployments(testserver.Namespace(t))
	const (
		twice = `[{"name":"A","value":"1"},{"name":"A","value":"2"}]`
		spec  = `{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"image":"i:1","name":"main"`
	)
	foreign := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	config := applyappsv1.Deployment("one", "")
	for text, into := range map[string]any{
		`{"spec":` + spec + `,"env":` + twice + `}]}}}}`: foreign,
		`{"spec":` + spec + `}]}}}}`:                     config,
	} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	live, err := deployments.Create(t.Context(), foreign, metav1.CreateOptions{FieldManager: "other"})
	if err != nil {
		t.Fatal(err)
	}
	config.WithNamespace(live.Namespace)
	var memory ssa.Memory[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]
	for n, want := range []int{1, 2, 3, 3} {
		apply := ssa.ApplyChanged[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]
		if n >= 2 {
			apply = memory.ApplyChanged
		}
		next, _, err := apply(t.Context(), "m", deployments.Apply, config, live, applyappsv1.ExtractDeployment)
		if err != nil || applies != want { // the server changes nothing, but for the time of the managed fields
			t.Fatalf("call %d: %d applies, %v, want %d", n, applies, err, want)
		}
		live = next
	}
	if err := json.Unmarshal([]byte(`{"spec":`+spec+`,"env":`+twice+`}]}}}}`), config); err != nil {
		t.Fatal(err)
	}
	if _, applied, err := ssa.ApplyChanged(t.Context(), "m", deployments.Apply, config, live, applyappsv1.ExtractDeployment); err == nil || applied {
		t.Errorf("a configuration with the key twice: applied = %v, %v", applied, err)
	}
}
