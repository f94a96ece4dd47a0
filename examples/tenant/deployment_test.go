package main

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/examples/tenant/config"
	"github.com/controllerkit/controllerkit/shutdown"
)

// TestDeployment checks that config/deployment.yaml fits the program.
func TestDeployment(t *testing.T) {
	data, err := config.Files.ReadFile("deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	container := pod.Containers[0]
	o, _, err := parse(container.Args)
	if err != nil {
		t.Fatalf("the program rejects the args of config/deployment.yaml: %v", err)
	}
	for what, ok := range map[string]bool{
		"TLS to the billing service": strings.HasPrefix(o.billingURL, "https://"),
		"an election for replicas":   o.leaderElect && o.leaseNamespace == d.Namespace && *d.Spec.Replicas > 1,
		"the service account":        pod.ServiceAccountName == "tenant-controller",
		"time for the stop":          new(shutdown.Group).Fits(time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second) == nil,
		"no root user":               *pod.SecurityContext.RunAsNonRoot,
		"a liveness probe":           container.LivenessProbe.HTTPGet.Path == "/livez",
		"a readiness probe":          container.ReadinessProbe.HTTPGet.Path == "/readyz",
	} {
		if !ok {
			t.Errorf("config/deployment.yaml lacks %s", what)
		}
	}
}
