package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// TestServerDeploy applies the manifests of config/kustomization.yaml, with the longest names, to an API
// server, and checks that they agree with each other. Then it applies the sample and the optional policy.
func TestServerDeploy(t *testing.T) {
	n := checked(t, names{module: "example.com/long", kind: "K" + strings.Repeat("k", maxKind-1), group: strings.Repeat("g", maxGroup-4) + ".com", name: strings.Repeat("n", maxKind)})
	files, err := render(n)
	if err != nil {
		t.Fatal(err)
	}
	config := testserver.Config(t)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	batch := &applyset.Batch{
		Client: client, Manager: "test",
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kube.Discovery())),
	}
	apply := func(t *testing.T, names ...string) {
		t.Helper()
		var objects []any
		for _, name := range names {
			for document := range strings.SplitSeq(files["config/"+name], "\n---\n") {
				obj := &unstructured.Unstructured{}
				if err := yaml.UnmarshalStrict([]byte(document), &obj.Object); err != nil || obj.GetKind() == "" {
					t.Fatalf("%s: %v, %v", name, err, obj.Object)
				}
				objects = append(objects, obj)
			}
		}
		if _, err := batch.Apply(t.Context(), objects...); err != nil {
			t.Fatal(err)
		}
	}
	var kustomization struct {
		APIVersion, Kind string
		Resources        []string
	}
	if err := yaml.UnmarshalStrict([]byte(files["config/kustomization.yaml"]), &kustomization); err != nil {
		t.Fatal(err)
	}
	if kustomization.APIVersion != "kustomize.config.k8s.io/v1beta1" || kustomization.Kind != "Kustomization" || !slices.Contains(kustomization.Resources, "crd.yaml") {
		t.Fatalf("kustomization.yaml is %+v", kustomization)
	}
	apply(t, kustomization.Resources...)

	name, namespace := n.name+"-operator", n.name+"-system"
	ctx := t.Context()
	get := metav1.GetOptions{}
	deployment := must[*appsv1.Deployment](t)(kube.AppsV1().Deployments(namespace).Get(ctx, name, get))
	account := must[*corev1.ServiceAccount](t)(kube.CoreV1().ServiceAccounts(namespace).Get(ctx, deployment.Spec.Template.Spec.ServiceAccountName, get))
	service := must[*corev1.Service](t)(kube.CoreV1().Services(namespace).Get(ctx, name, get))
	role := must[*rbacv1.Role](t)(kube.RbacV1().Roles(namespace).Get(ctx, name, get))
	roleBinding := must[*rbacv1.RoleBinding](t)(kube.RbacV1().RoleBindings(namespace).Get(ctx, name, get))
	clusterRole := must[*rbacv1.ClusterRole](t)(kube.RbacV1().ClusterRoles().Get(ctx, name, get))
	clusterRoleBinding := must[*rbacv1.ClusterRoleBinding](t)(kube.RbacV1().ClusterRoleBindings().Get(ctx, name, get))
	subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: account.Name, Namespace: account.Namespace}
	pod := deployment.Spec.Template
	container := pod.Spec.Containers[0]
	for what, ok := range map[string]bool{
		"the Deployment selects its Pods": maps.Equal(deployment.Spec.Selector.MatchLabels, pod.Labels),
		"the Service selects the Pods":    maps.Equal(service.Spec.Selector, pod.Labels),
		"the Service has the port":        service.Spec.Ports[0].TargetPort.StrVal == container.Ports[0].Name,
		"the account has the Role":        slices.Contains(roleBinding.Subjects, subject) && roleBinding.RoleRef.Kind == "Role" && roleBinding.RoleRef.Name == role.Name,
		"the account has the ClusterRole": slices.Contains(clusterRoleBinding.Subjects, subject) && clusterRoleBinding.RoleRef.Kind == "ClusterRole" && clusterRoleBinding.RoleRef.Name == clusterRole.Name,
		"the Lease is in the Pod's own namespace": slices.Contains(container.Args, "-lease-namespace=$(NAMESPACE)") && slices.ContainsFunc(container.Env, func(v corev1.EnvVar) bool {
			return v.Name == "NAMESPACE" && v.ValueFrom.FieldRef.FieldPath == "metadata.namespace"
		}),
		"the Role is about the Lease": slices.Equal(role.Rules[0].ResourceNames, []string{name}),
		"the ClusterRole is about the kind": slices.ContainsFunc(clusterRole.Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Equal(r.APIGroups, []string{n.group}) && slices.Equal(r.Resources, []string{n.plural + "/status"})
		}),
	} {
		if !ok {
			t.Errorf("not so: %s", what)
		}
	}

	t.Run("policy", func(t *testing.T) {
		testserver.Since(t, "1.36", "it does not serve MutatingAdmissionPolicy in v1")
		apply(t, "finalizer.yaml")
	})
	sample := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(files["config/sample.yaml"]), &sample.Object); err != nil {
		t.Fatal(err)
	}
	resource := client.Resource(schema.GroupVersionResource{Group: n.group, Version: "v1", Resource: n.plural}).Namespace("default")
	if _, err := resource.Apply(ctx, sample.GetName(), sample, metav1.ApplyOptions{FieldManager: "test"}); err != nil {
		t.Error(err)
	}
}

// must returns a function that fails the test if it gets an error.
func must[T any](t *testing.T) func(T, error) T {
	return func(obj T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return obj
	}
}
