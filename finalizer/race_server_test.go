package finalizer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// A DELETE in progress ignores a first finalizer that is added after its read, so work
// can be guarded by the finalizer of an object that is gone (the caveat of the package).
// An object that is created with the finalizer has no such moment: the policy of
// docs/finalizers.md adds it.
func TestServerCreatedWithFinalizer(t *testing.T) {
	s := newServer(t)
	adding(t, s)
	other, err := kubernetes.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	var lost atomic.Int64
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 50 {
				key := fmt.Sprintf("race-%d-%d", worker, i)
				obj, err := s.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key}}, metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				// The two meet within the time of a request.
				deletion, ensure := rand.N(3*time.Millisecond), rand.N(3*time.Millisecond)
				deleted := make(chan error, 1)
				go func() {
					time.Sleep(deletion)
					deleted <- other.CoreV1().ConfigMaps(s.namespace).Delete(t.Context(), key, metav1.DeleteOptions{})
				}()
				time.Sleep(ensure)
				// A request of Ensure would be an error.
				_, live, err := finalizer.Ensure(t.Context(), &answering{err: errBoom}, obj, name, func(context.Context, held) error { return nil })
				if err := <-deleted; err != nil {
					t.Error(err)
				}
				if err != nil || !live {
					t.Errorf("%s: live %t, %v", key, live, err)
				}
				stored, err := s.Get(t.Context(), key, metav1.GetOptions{})
				if err != nil {
					lost.Add(1)
					continue
				}
				if _, err := finalizer.Remove(t.Context(), s, stored, name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if lost.Load() > 0 {
		t.Errorf("%d of 200 objects are gone without their cleanup", lost.Load())
	}
}

// adding lets the API server add the finalizer to each ConfigMap that is created in the
// namespace of s, by the policy of docs/finalizers.md.
func adding(t *testing.T, s server) {
	t.Helper()
	testserver.Since(t, "1.36", "it does not serve MutatingAdmissionPolicy in v1")
	page, err := os.ReadFile("../docs/finalizers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```yaml\n")
	text, _, closed := strings.Cut(text, "```")
	policyText, bindingText, both := strings.Cut(text, "---\n")
	if !found || !closed || !both {
		t.Fatal("docs/finalizers.md has no policy with a binding")
	}
	var policy admissionv1.MutatingAdmissionPolicy
	var binding admissionv1.MutatingAdmissionPolicyBinding
	if err := errors.Join(yaml.UnmarshalStrict([]byte(policyText), &policy), yaml.UnmarshalStrict([]byte(bindingText), &binding)); err != nil {
		t.Fatal(err)
	}
	// The widgets of the page are the ConfigMaps of this test.
	policy.Name, binding.Name, binding.Spec.PolicyName = s.namespace, s.namespace, s.namespace
	rule := &policy.Spec.MatchConstraints.ResourceRules[0].Rule
	rule.APIGroups, rule.Resources = []string{""}, []string{"configmaps"}
	binding.Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
		MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.namespace},
	}}

	policies := s.client.AdmissionregistrationV1()
	if _, err := policies.MutatingAdmissionPolicies().Create(t.Context(), &policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{
			policies.MutatingAdmissionPolicyBindings().Delete(context.Background(), binding.Name, metav1.DeleteOptions{}),
			policies.MutatingAdmissionPolicies().Delete(context.Background(), policy.Name, metav1.DeleteOptions{}),
		} {
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	if _, err := policies.MutatingAdmissionPolicyBindings().Create(t.Context(), &binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// When the server has read a policy, nothing tells. Try until it adds.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		trial, err := s.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "trial-"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Fatal(err)
		}
		if finalizer.Has(trial, name) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
