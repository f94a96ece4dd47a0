package rows

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

// compactKinds are the kinds of compact/process, with the goals of their cases.
var compactKinds = []struct {
	name, kind            string
	live, peak, time, cpu float64 // of controller-runtime's
	beside                float64 // time, of client-go's
}{
	{name: "Deployments", kind: contender.Deployments, live: 0.22, peak: 0.38, time: 0.65, cpu: 0.6, beside: 1},
	{name: "ConfigMaps", kind: contender.ConfigMaps, live: 0.6, peak: 0.65, time: 0.7, cpu: 0.7, beside: 1},
	{name: "custom resource", kind: contender.Gadgets, live: 0.75, peak: 0.8, time: 0.8, cpu: 0.8, beside: 1.1},
}

func init() {
	row := bench.Row{
		Name: "compact/process",
		About: fmt.Sprintf("The work of operator/process with package informer/compact, for %d objects of a kind. A Deployment has one container and two field managers, a ConfigMap has 1 KiB, and a custom resource "+
			"has 2 KiB of JSON. A reconcile reads its object: the library decodes it, controller-runtime's client copies it, and client-go returns the pointer of the cache. The rivals have their transforms without managedFields. "+
			"CPU is the processor time of the process until the end of the reconciles.", processObjects),
		Op: "object",
		Pairs: func(ctx context.Context) (pairs []bench.Pair, _ func(), _ error) {
			p, stop, err := newCompactProcesses(ctx)
			if err != nil {
				return nil, nil, err
			}
			for _, k := range compactKinds {
				pairs = append(pairs, p.pairs(k.name, k.kind, processObjects, []string{"-compact"}, []string{"-trim"})...)
			}
			return pairs, stop, nil
		},
	}
	for _, k := range compactKinds {
		row.Goals = append(row.Goals,
			bench.Goal{Case: k.name, Figure: bench.Time, Rival: controllerRuntime, AtMost: k.time},
			bench.Goal{Case: k.name, Figure: cpuTime, Rival: controllerRuntime, AtMost: k.cpu},
			bench.Goal{Case: k.name, Figure: "B peak", Rival: controllerRuntime, AtMost: k.peak},
			bench.Goal{Case: k.name, Figure: "B live", Rival: controllerRuntime, AtMost: k.live},
			bench.Goal{Case: k.name, Figure: bench.Time, Rival: clientGo, AtMost: k.beside},
		)
	}
	bench.Register(row)
	bench.Register(bench.Row{
		Name:  "curves/compact",
		Curve: "objects",
		Long:  true,
		About: "The work of compact/process with Deployments, for 10,000 to 200,000 objects.",
		Op:    "object",
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			p, err := newProcesses(ctx)
			if err != nil {
				return nil, nil, err
			}
			return p.curve(contender.Deployments, []string{"-compact"}, []string{"-trim"}), p.stop, nil
		},
	})
}

// newCompactProcesses is newProcesses with the custom resource.
func newCompactProcesses(ctx context.Context) (_ *processes, stop func(), _ error) {
	p, err := newProcesses(ctx)
	if err != nil {
		return nil, nil, err
	}
	uninstall, err := installDefinition(ctx, p.config, gadgetDefinition())
	if err != nil {
		p.stop()
		return nil, nil, err
	}
	return p, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := uninstall(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "bench: clean up:", err)
		}
		p.stop()
	}, nil
}

// fillKind creates the objects of a kind that are missing.
func (p *processes) fillKind(ctx context.Context, kind string, objects int) error {
	switch kind {
	case contender.Deployments:
		return p.fillDeployments(ctx, objects)
	case contender.Gadgets:
		return p.fillGadgets(ctx, objects)
	}
	return p.fillMaps(ctx, objects)
}

// A Deployment gets its status from a second field manager, as from kube-controller-manager.
func (p *processes) fillDeployments(ctx context.Context, objects int) error {
	kube, err := kubernetes.NewForConfig(p.config)
	if err != nil {
		return err
	}
	client := kube.AppsV1().Deployments(p.namespace)
	return createMissing(ctx, &p.deployments, objects, func(ctx context.Context, i int) error {
		d := processDeployment(i)
		if _, err := client.Create(ctx, d, metav1.CreateOptions{FieldManager: "bench"}); err != nil {
			return err
		}
		_, err := client.Patch(ctx, d.Name, types.MergePatchType, []byte(deploymentStatus), metav1.PatchOptions{FieldManager: "kube-controller-manager"}, "status")
		return err
	})
}

const deploymentStatus = `{"metadata":{"annotations":{"deployment.kubernetes.io/revision":"1"}},"status":{"observedGeneration":1,"conditions":[
{"type":"Available","status":"True","reason":"MinimumReplicasAvailable","message":"Deployment has minimum availability.","lastUpdateTime":"2026-01-02T03:04:05Z","lastTransitionTime":"2026-01-02T03:04:05Z"},
{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable","message":"ReplicaSet \"process-7d4b9c6f5d\" has successfully progressed.","lastUpdateTime":"2026-01-02T03:04:06Z","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`

// processDeployment returns the i-th Deployment of fillDeployments.
func processDeployment(i int) *appsv1.Deployment {
	name := fmt.Sprint("process-", i)
	labels := map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": name, "app.kubernetes.io/managed-by": "bench", "tenth": strconv.Itoa(i % 10),
		}},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "main", Image: "registry.example.com/web:1.2.3", Args: []string{"--listen=:8080"},
					Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
					Env:   []corev1.EnvVar{{Name: "INSTANCE", Value: name}, {Name: "LEVEL", Value: "info"}},
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
						Limits:   corev1.ResourceList{"memory": resource.MustParse("256Mi")},
					},
					ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")}}},
				}}},
			},
		},
	}
}

func (p *processes) fillGadgets(ctx context.Context, objects int) error {
	client, err := contender.GadgetClient(p.config, p.namespace)
	if err != nil {
		return err
	}
	return createMissing(ctx, &p.gadgets, objects, func(ctx context.Context, i int) error {
		_, err := client.Create(ctx, processGadget(i), metav1.CreateOptions{FieldManager: "bench"})
		return err
	})
}

// processGadget returns the i-th custom resource of fillGadgets, of 2 KiB as the API server returns
// it without managedFields.
func processGadget(i int) *contender.Gadget {
	name := fmt.Sprint("process-", i)
	g := &contender.Gadget{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "gadget", "tenth": strconv.Itoa(i % 10)}},
		Spec: contender.GadgetSpec{
			Replicas: 3, Timeout: metav1.Duration{Duration: time.Minute},
			Selector: map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": name},
		},
		Status: contender.GadgetStatus{ObservedGeneration: 1, Addresses: []string{"10.0.0.1", "10.0.0.2"}},
	}
	for r := range 4 {
		path := fmt.Sprintf("/v%d/items", r)
		g.Spec.Rules = append(g.Spec.Rules, contender.GadgetRule{
			Name: fmt.Sprint("rule-", r), Hosts: []string{"www.example.com", name + ".example.com"}, Path: path,
			Headers: []contender.GadgetHeader{{Name: "X-Forwarded-Prefix", Value: path}, {Name: "Cache-Control", Value: "no-store"}},
			Backends: []contender.GadgetBackend{
				{Service: "web-blue", Port: 8080, Weight: new(int32(90))},
				{Service: "web-green", Port: 8080, Weight: new(int32(10))},
			},
		})
	}
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	for _, condition := range []string{"Ready", "Accepted"} {
		g.Status.Conditions = append(g.Status.Conditions, metav1.Condition{
			Type: condition, Status: metav1.ConditionTrue, Reason: "AsExpected", Message: "All backends are available.", ObservedGeneration: 1, LastTransitionTime: at,
		})
	}
	return g
}

func gadgetDefinition() map[string]any {
	kind := contender.GadgetKind()
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": contender.GadgetResource().String()},
		"spec": map[string]any{
			"group": kind.Group,
			"scope": "Namespaced",
			"names": map[string]any{"kind": kind.Kind, "listKind": kind.Kind + "List", "plural": contender.Gadgets, "singular": "gadget"},
			"versions": []any{map[string]any{
				"name": kind.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}
}
