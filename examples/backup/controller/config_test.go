package controller_test

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/examples/backup/controller"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/shutdown"
)

var update = flag.Bool("update", false, "write config/rbac.yaml instead of comparing with it")

const (
	name            = "backup-operator"
	systemNamespace = "backup-system"
	settingsName    = "backup-settings"
)

// TestRBAC checks that config/rbac.yaml has exactly the rights that the operator needs.
func TestRBAC(t *testing.T) {
	op, err := controller.New(&rest.Config{Host: "https://no-request"}, controller.Options{
		Operator: operator.Options{Name: name, LeaseNamespace: systemNamespace},
		Settings: types.NamespacedName{Namespace: systemNamespace, Name: settingsName},
	})
	if err != nil {
		t.Fatal(err)
	}
	objects, leases := op.Rules()
	if len(objects) == 0 || len(leases) == 0 {
		t.Fatal("no rules: this test checks nothing")
	}
	// Rules does not know that the settings are one ConfigMap of the operator's namespace.
	var everywhere, system []rbacv1.PolicyRule
	for _, rule := range objects {
		if slices.Equal(rule.Resources, []string{"configmaps"}) {
			rule.ResourceNames = []string{settingsName}
			system = append(system, rule)
			continue
		}
		everywhere = append(everywhere, rule)
	}
	if len(system) != 1 {
		t.Fatalf("rules %v of ConfigMaps, want one", system)
	}
	system = append(system, leases...)

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
		rbacv1.ClusterRole{TypeMeta: rbac("ClusterRole"), ObjectMeta: inCluster, Rules: everywhere},
		rbacv1.ClusterRoleBinding{TypeMeta: rbac("ClusterRoleBinding"), ObjectMeta: inCluster, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}},
		rbacv1.Role{TypeMeta: rbac("Role"), ObjectMeta: inNamespace, Rules: system},
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

// TestManifests checks that config/deployment.yaml fits the operator, and config/settings.yaml is valid.
func TestManifests(t *testing.T) {
	read := func(file string, obj any) {
		t.Helper()
		data, err := os.ReadFile("../config/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(data, obj); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	var d appsv1.Deployment
	read("deployment.yaml", &d)
	pod := d.Spec.Template.Spec
	container := pod.Containers[0]
	for what, ok := range map[string]bool{
		"the service account":    d.Namespace == systemNamespace && pod.ServiceAccountName == name,
		"time for the stop":      new(shutdown.Group).Fits(time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second) == nil,
		"no root user":           *pod.SecurityContext.RunAsNonRoot,
		"a liveness probe":       container.LivenessProbe.HTTPGet.Path == "/livez",
		"a readiness probe":      container.ReadinessProbe.HTTPGet.Path == "/readyz",
		"TLS to the store":       slices.ContainsFunc(container.Args, func(arg string) bool { return strings.HasPrefix(arg, "-store=https://") }),
		"a bound for the memory": !container.Resources.Limits.Memory().IsZero(),
	} {
		if !ok {
			t.Errorf("config/deployment.yaml lacks %s", what)
		}
	}
	var settings corev1.ConfigMap
	read("settings.yaml", &settings)
	if _, err := controller.ParseSettings(settings.Data); err != nil || settings.Name != settingsName || settings.Namespace != systemNamespace {
		t.Errorf("config/settings.yaml is %s/%s, error %v", settings.Namespace, settings.Name, err)
	}
}
