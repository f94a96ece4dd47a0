package controller_test

import (
	"bytes"
	"errors"
	"flag"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/shutdown"
)

var update = flag.Bool("update", false, "write config/rbac.yaml instead of comparing with it")

const (
	name            = "website-operator"
	systemNamespace = "website-system"
)

// TestRBAC checks that config/rbac.yaml has exactly the rights that the operator needs.
func TestRBAC(t *testing.T) {
	op, err := controller.New(&rest.Config{Host: "https://no-request"}, operator.Options{Name: name, LeaseNamespace: systemNamespace}, nil)
	if err != nil {
		t.Fatal(err)
	}
	objects, leases := op.Rules()
	if len(objects) == 0 || len(leases) == 0 {
		t.Fatal("no rules: this test checks nothing")
	}
	inCluster := metav1.ObjectMeta{Name: name}
	inNamespace := metav1.ObjectMeta{Name: name, Namespace: systemNamespace}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: systemNamespace}}
	rbac := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
	}
	var got bytes.Buffer
	got.WriteString("# Generated from the operator's Rules: go test ./controller -run TestRBAC -update\n")
	for i, obj := range []any{
		corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}},
		corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: inNamespace},
		rbacv1.ClusterRole{TypeMeta: rbac("ClusterRole"), ObjectMeta: inCluster, Rules: objects},
		rbacv1.ClusterRoleBinding{TypeMeta: rbac("ClusterRoleBinding"), ObjectMeta: inCluster, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}},
		rbacv1.Role{TypeMeta: rbac("Role"), ObjectMeta: inNamespace, Rules: leases},
		rbacv1.RoleBinding{TypeMeta: rbac("RoleBinding"), ObjectMeta: inNamespace, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}},
	} {
		if i > 0 {
			got.WriteString("---\n")
		}
		data, err := yaml.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(bytes.Replace(data, []byte("spec: {}\nstatus: {}\n"), nil, 1)) // of the Namespace
	}
	const file = "../config/rbac.yaml"
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s is out of date: run go test ./controller -run TestRBAC -update (-file +generated)\n%s", file, diff)
	}
}

// TestFinalizerPolicy checks that config/finalizer.yaml is about the kind and its finalizer.
func TestFinalizerPolicy(t *testing.T) {
	data, err := os.ReadFile("../config/finalizer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	policyText, bindingText, _ := strings.Cut(string(data), "---\n")
	var policy admissionv1.MutatingAdmissionPolicy
	var binding admissionv1.MutatingAdmissionPolicyBinding
	if err := errors.Join(yaml.UnmarshalStrict([]byte(policyText), &policy), yaml.UnmarshalStrict([]byte(bindingText), &binding)); err != nil {
		t.Fatal(err)
	}
	rule, mutation := policy.Spec.MatchConstraints.ResourceRules[0].Rule, policy.Spec.Mutations[0].ApplyConfiguration.Expression
	if rule.APIGroups[0] != v1.GroupVersion.Group || rule.APIVersions[0] != v1.GroupVersion.Version || !slices.Equal(rule.Resources, []string{"websites"}) {
		t.Errorf("the rule is %+v", rule)
	}
	if !strings.Contains(mutation, strconv.Quote(controller.Finalizer)) {
		t.Errorf("the mutation is %s, want the finalizer %s", mutation, controller.Finalizer)
	}
	if binding.Spec.PolicyName != policy.Name {
		t.Errorf("the binding is of %s, want %s", binding.Spec.PolicyName, policy.Name)
	}
}

// TestDeployment checks that config/deployment.yaml fits the operator.
func TestDeployment(t *testing.T) {
	data, err := os.ReadFile("../config/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	container := pod.Containers[0]
	var service corev1.Service
	if data, err = os.ReadFile("../config/service.yaml"); err == nil {
		err = yaml.UnmarshalStrict(data, &service)
	}
	if err != nil {
		t.Fatal(err)
	}
	for what, ok := range map[string]bool{
		"three replicas":         *d.Spec.Replicas == 3,
		"the service account":    d.Namespace == systemNamespace && pod.ServiceAccountName == name,
		"time for the stop":      new(shutdown.Group).Fits(time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second) == nil,
		"no root user":           *pod.SecurityContext.RunAsNonRoot,
		"a read-only root":       *container.SecurityContext.ReadOnlyRootFilesystem,
		"no privilege":           !*container.SecurityContext.AllowPrivilegeEscalation && container.SecurityContext.Capabilities.Drop[0] == "ALL",
		"a liveness probe":       container.LivenessProbe.HTTPGet.Path == "/livez",
		"a readiness probe":      container.ReadinessProbe.HTTPGet.Path == "/readyz",
		"TLS to the DNS service": slices.ContainsFunc(container.Args, func(arg string) bool { return strings.HasPrefix(arg, "-dns=https://") }),
		"its own selector":       maps.Equal(d.Spec.Selector.MatchLabels, d.Spec.Template.Labels),
		"its Service":            service.Namespace == d.Namespace && maps.Equal(service.Spec.Selector, d.Spec.Selector.MatchLabels) && service.Spec.Ports[0].TargetPort.StrVal == container.Ports[0].Name && service.Spec.PublishNotReadyAddresses,
		"a bound for the memory": collects(container),
	} {
		if !ok {
			t.Errorf("config/deployment.yaml lacks %s", what)
		}
	}
}

// collects reports whether GOMEMLIMIT is about 90 % of the limit of the container's memory, as docs/memory.md says.
func collects(c corev1.Container) bool {
	i := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "GOMEMLIMIT" })
	if i < 0 {
		return false
	}
	soft, err := resource.ParseQuantity(strings.TrimSuffix(c.Env[i].Value, "B"))
	share := float64(soft.Value()) / float64(c.Resources.Limits.Memory().Value())
	return err == nil && share > 0.85 && share < 0.95
}
