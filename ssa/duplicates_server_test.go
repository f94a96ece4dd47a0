package ssa_test

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// TestServerForeignDuplicates: if another manager's list has a key twice, which no apply can express,
// each ApplyChanged applies, and a Memory ends it. A configuration with the key twice is an error.
func TestServerForeignDuplicates(t *testing.T) {
	t.Parallel()
	deployments := kubernetes.NewForConfigOrDie(testserver.Config(t)).AppsV1().Deployments(testserver.Namespace(t))
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
	for n, want := range []bool{true, true, true, false} {
		apply := ssa.ApplyChanged[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]
		if n >= 2 {
			apply = memory.ApplyChanged
		}
		next, applied, err := apply(t.Context(), "m", deployments.Apply, config, live, applyappsv1.ExtractDeployment)
		if err != nil || applied != want {
			t.Fatalf("call %d: applied = %v, %v, want %v", n, applied, err, want)
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
