package rows

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/ssa"
)

// The rows about ssa measure the decision that a Deployment already matches its
// configuration. The library decides from the cached object. The rivals send a dry run to
// the server, or extract the owned fields and compare them.

const applier = "bench"

func init() {
	const beside = " The rivals are a dry-run apply to a real API server, and the generated extraction with a comparison of the encoded configurations."
	bench.Register(bench.Row{
		Name:  "ssa/unchanged",
		About: "The decision that a Deployment of 8 KiB needs no apply. It is the first decision about each object, for a kind that was seen before." + beside,
		Op:    "decision",
		Goals: []bench.Goal{
			{Figure: bench.Time, AtMost: 150e3},
			{Figure: bench.Allocs, AtMost: 400},
			{Figure: bench.Time, Rival: dryRun, AtMost: 0.2},
			{Figure: bench.Time, Rival: extraction, AtMost: 0.5},
		},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) { return unchangedPairs(ctx) },
	})
}

const (
	dryRun     = "dry run"
	extraction = "extraction"
)

// deployments is a Deployment on the server with its configuration.
type deployments struct {
	client appsv1client.DeploymentInterface
	config *applyappsv1.DeploymentApplyConfiguration
	live   *appsv1.Deployment
}

func unchangedPairs(ctx context.Context) (_ []bench.Pair, _ func(), err error) {
	a, err := openArena(ctx)
	if err != nil {
		return nil, nil, err
	}
	kube, err := kubernetes.NewForConfig(a.config)
	if err != nil {
		return nil, a.stop, err
	}
	d := &deployments{client: kube.AppsV1().Deployments(a.namespace), config: bigDeployment(a.namespace)}
	if d.live, err = ssa.Apply(ctx, applier, d.client.Apply, d.config); err != nil {
		return nil, a.stop, err
	}
	bare := d.live.DeepCopy()
	bare.ManagedFields = nil
	if b, err := json.Marshal(bare); err != nil {
		return nil, a.stop, err
	} else if len(b) < 8<<10 {
		return nil, a.stop, fmt.Errorf("the Deployment has %d bytes, want 8 KiB", len(b))
	}
	pair := func(n int, name string, theirs func(ctx context.Context, n int) error) bench.Pair {
		measured := func(f func(ctx context.Context, n int) error) func(ctx context.Context, m *bench.Meter) (int, error) {
			return func(ctx context.Context, m *bench.Meter) (ops int, err error) {
				ops = m.N(n)
				m.Measure(func() { err = f(ctx, ops) })
				return ops, err
			}
		}
		ours := func(ctx context.Context, m *bench.Meter) (int, error) { return d.decide(ctx, m, m.N(n)) }
		return bench.Pair{
			Ours:   bench.Contender{Name: "controllerkit", Run: ours},
			Theirs: bench.Contender{Name: name, Module: "k8s.io/client-go", Run: measured(theirs)},
		}
	}
	return []bench.Pair{pair(100, dryRun, d.dryRun), pair(500, extraction, d.extract)}, a.stop, nil
}

var errRequest = errors.New("ApplyChanged sent a request, want a skip")

// refuser is a client that rejects every call.
type refuser struct{}

func (refuser) Apply(context.Context, *applyappsv1.DeploymentApplyConfiguration, metav1.ApplyOptions) (*appsv1.Deployment, error) {
	return nil, errRequest
}

// decide makes n decisions about objects of one kind.
func (d *deployments) decide(ctx context.Context, m *bench.Meter, n int) (int, error) {
	decide := func(live *appsv1.Deployment) error {
		_, _, err := ssa.ApplyChanged(ctx, applier, refuser{}.Apply, d.config, live, applyappsv1.ExtractDeployment)
		return err
	}
	objects := make([]appsv1.Deployment, n)
	for i := range objects {
		objects[i] = *d.live
		objects[i].UID = types.UID(fmt.Sprint(i))
	}
	failed := decide(d.live)
	m.Measure(func() {
		for i := range objects {
			if err := decide(&objects[i]); err != nil {
				failed = err
			}
		}
	})
	return n, failed
}

func (d *deployments) dryRun(ctx context.Context, n int) error {
	for range n {
		applied, err := d.client.Apply(ctx, d.config, metav1.ApplyOptions{FieldManager: applier, Force: true, DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		if applied.ResourceVersion != d.live.ResourceVersion {
			return errors.New("the dry run changed the object, want no change")
		}
	}
	return nil
}

// extract decides with the generated extraction.
func (d *deployments) extract(_ context.Context, n int) error {
	for range n {
		owned, err := applyappsv1.ExtractDeployment(d.live, applier)
		if err != nil {
			return err
		}
		want, err := json.Marshal(d.config)
		if err != nil {
			return err
		}
		got, err := json.Marshal(owned)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("owned fields: got %s, want %s", got, want)
		}
	}
	return nil
}

// bigDeployment returns a Deployment with two containers of usual size.
func bigDeployment(namespace string) *applyappsv1.DeploymentApplyConfiguration {
	labels := map[string]string{"app": "one"}
	pod := applycorev1.PodSpec()
	for _, name := range []string{"main", "side"} {
		c := applycorev1.Container().WithName(name).WithImage("example.com/image:1").WithArgs("--one=1", "--two=2")
		for i := range 39 {
			c.WithEnv(applycorev1.EnvVar().WithName(fmt.Sprintf("VARIABLE_%d", i)).WithValue(fmt.Sprintf("value %d of the environment of the container", i)))
		}
		for i := range 4 {
			c.WithPorts(applycorev1.ContainerPort().WithName(fmt.Sprintf("port-%d", i)).WithContainerPort(int32(8000 + i)))
			c.WithVolumeMounts(applycorev1.VolumeMount().WithName(fmt.Sprintf("volume-%d", i)).WithMountPath(fmt.Sprintf("/var/lib/volumes/%d", i)))
		}
		pod.WithContainers(c)
	}
	for i := range 4 {
		pod.WithVolumes(applycorev1.Volume().WithName(fmt.Sprintf("volume-%d", i)).WithConfigMap(applycorev1.ConfigMapVolumeSource().WithName("configuration")))
	}
	config := applyappsv1.Deployment("one", namespace).WithLabels(labels)
	return config.WithSpec(applyappsv1.DeploymentSpec().WithReplicas(2).
		WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)).
		WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).WithSpec(pod)))
}
