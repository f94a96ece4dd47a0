package mistakes_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

// child returns a ConfigMap with data.
func (s *stand) child(name string, data map[string]string) *applycorev1.ConfigMapApplyConfiguration {
	return applycorev1.ConfigMap(name, s.namespace).WithData(data)
}

// kindTest runs both subtests of a mistake in Reconcile, of which the line has a path.
func kindTest(t *testing.T, line, path string, wrong, right func(ctx context.Context, s *stand, shop *Shop) error) {
	t.Helper()
	version := install(t)
	t.Run("named", func(t *testing.T) {
		s := newKind(t, version, testserver.Namespace(t), operator.Options{}, operator.Reconciler[*Shop]{}, wrong)
		s.run()
		s.shop("a", "x")
		if values := s.named(line, nil).Values; fmt.Sprint(values["paths"]) != "["+path+"]" || values["child"] != "ConfigMap "+s.namespace+"/a" {
			t.Errorf("the line has %v", values)
		}
	})
	t.Run("quiet", func(t *testing.T) {
		s := newKind(t, version, testserver.Namespace(t), operator.Options{}, operator.Reconciler[*Shop]{}, right)
		s.run()
		s.shop("a", "x")
		s.calls(2)
		for n := range 10 {
			s.touch("a", n)
			s.calls(1)
		}
		s.quiet()
	})
}

// TestMistakeWallClock: the time in a child.
func TestMistakeWallClock(t *testing.T) {
	t.Parallel()
	kindTest(t, lineDiffers, ".data.at", func(ctx context.Context, s *stand, shop *Shop) error {
		_, err := s.c.Apply(ctx, s.child("a", map[string]string{"text": shop.Spec.Text, "at": time.Now().Format(time.RFC3339Nano)}))
		return err
	}, func(ctx context.Context, s *stand, shop *Shop) error {
		_, err := s.c.Apply(ctx, s.child("a", map[string]string{"text": shop.Spec.Text, "at": shop.CreationTimestamp.Format(time.RFC3339)}))
		return err
	})
}

// order returns the keys of a map.
func order(sorted bool) []string {
	m := map[string]bool{}
	for n := range 30 {
		m[fmt.Sprint("example.com/", n)] = true
	}
	if sorted {
		return slices.Sorted(maps.Keys(m))
	}
	return slices.Collect(maps.Keys(m))
}

// TestMistakeMapOrder: the order of a map in a list of a child.
func TestMistakeMapOrder(t *testing.T) {
	t.Parallel()
	apply := func(sorted bool) func(ctx context.Context, s *stand, shop *Shop) error {
		return func(ctx context.Context, s *stand, shop *Shop) error {
			_, err := s.c.Apply(ctx, s.child("a", nil).WithFinalizers(order(sorted)...))
			return err
		}
	}
	kindTest(t, lineOrder, ".metadata.finalizers", apply(false), apply(true))
}

// TestMistakeProcessUID: a child's name has a value that differs in each process.
func TestMistakeProcessUID(t *testing.T) {
	t.Parallel()
	version := install(t)
	process := func(t *testing.T, namespace string, name func(shop *Shop) string) *stand {
		s := newKind(t, version, namespace, operator.Options{}, operator.Reconciler[*Shop]{}, func(ctx context.Context, s *stand, shop *Shop) error {
			_, err := s.c.Apply(ctx, s.child(name(shop), map[string]string{"text": shop.Spec.Text}))
			return err
		})
		return s
	}
	t.Run("named", func(t *testing.T) {
		namespace := testserver.Namespace(t)
		uid := func() func(*Shop) string {
			id := uuid.NewUUID()
			return func(shop *Shop) string { return shop.Name + "-" + string(id) }
		}
		first := process(t, namespace, uid())
		stop := first.run()
		first.shop("a", "x")
		first.calls(2)
		stop()
		first.quiet()
		second := process(t, namespace, uid())
		second.run()
		line := second.named(lineRenamed, nil)
		if former := fmt.Sprint(line.Values["former"]); !strings.HasPrefix(former, "a-") {
			t.Errorf("the line has %v", line.Values)
		}
	})
	t.Run("quiet", func(t *testing.T) {
		namespace := testserver.Namespace(t)
		byOwner := func(shop *Shop) string { return shop.Name + "-" + string(shop.UID) }
		first := process(t, namespace, byOwner)
		stop := first.run()
		first.shop("a", "x")
		first.calls(2)
		stop()
		first.quiet()
		second := process(t, namespace, byOwner)
		second.run()
		second.calls(1)
		second.shop("b", "x")
		second.calls(2)
		second.quiet()
	})
}

// TestMistakeWebhook: a webhook rewrites a field of a child that the configuration has. The correct
// configuration leaves it out.
func TestMistakeWebhook(t *testing.T) {
	t.Parallel()
	version := install(t)
	server := httptest.NewTLSServer(http.HandlerFunc(rewrite))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	run := func(t *testing.T, data map[string]string) *stand {
		s := newKind(t, version, testserver.Namespace(t), operator.Options{}, operator.Reconciler[*Shop]{}, func(ctx context.Context, s *stand, shop *Shop) error {
			_, err := s.c.Apply(ctx, s.child("a", data))
			return err
		})
		hooks := s.kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
		hook := &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name:                    "rewrite.example.com",
				ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: ptr.To(server.URL), CABundle: ca},
				AdmissionReviewVersions: []string{"v1"},
				SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
				NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.namespace}},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}},
			}},
		}
		if _, err := hooks.Create(t.Context(), hook, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := hooks.Delete(context.Background(), s.namespace, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		for n := 0; ; n++ { // the API server learns of the webhook by a watch
			cm := s.configMap(fmt.Sprint("probe-", n))
			if cm.Data["image"] == "theirs" {
				break
			}
			if n == 10_000 {
				t.Fatal("the webhook is not called")
			}
		}
		s.run()
		s.shop("a", "x")
		return s
	}
	t.Run("named", func(t *testing.T) {
		s := run(t, map[string]string{"image": "mine", "text": "x"})
		line := s.named(lineRewritten, nil)
		if got := fmt.Sprint(line.Values["paths"]); got != "[.data.image]" {
			t.Errorf("the line has %v", line.Values)
		}
	})
	t.Run("quiet", func(t *testing.T) {
		s := run(t, map[string]string{"text": "x"})
		s.calls(2)
		for n := range 5 {
			s.touch("a", n)
			s.calls(1)
		}
		s.quiet()
	})
}

// rewrite is a webhook that sets the image of each ConfigMap.
func rewrite(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err != nil || review.Request == nil {
		http.Error(w, "not a review", http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if review.Request.Operation != admissionv1.Delete {
		review.Response.PatchType = ptr.To(admissionv1.PatchTypeJSONPatch)
		review.Response.Patch = []byte(`[{"op":"add","path":"/data/image","value":"theirs"}]`)
	}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review) // the API server has gone away
}

// TestMistakeTwoControllers: two processes without an election write different statuses of one object.
// Two controllers of one kind in a process are an error of Run.
func TestMistakeTwoControllers(t *testing.T) {
	t.Parallel()
	version := install(t)
	report := func(url string) func(context.Context, *stand, *Shop) error {
		return func(_ context.Context, _ *stand, shop *Shop) error {
			shop.Status.URL = url
			return nil
		}
	}
	t.Run("named", func(t *testing.T) {
		namespace := testserver.Namespace(t)
		one := newKind(t, version, namespace, operator.Options{}, operator.Reconciler[*Shop]{}, report("one"))
		two := newKind(t, version, namespace, operator.Options{}, operator.Reconciler[*Shop]{}, report("two"))
		one.run()
		two.run()
		one.shop("a", "x")
		if got := fmt.Sprint(one.named(lineShared, nil).Values["paths"]); got != "[.url]" {
			t.Errorf("the line has the paths %s", got)
		}

		both := newKind(t, version, namespace, operator.Options{}, operator.Reconciler[*Shop]{}, report("one"))
		operator.Kind(both.op, version.WithResource("shops"), operator.Reconciler[*Shop]{})
		wantError(t, both.startError(), `two controllers have the name "shops"`)
	})
	t.Run("quiet", func(t *testing.T) {
		namespace := testserver.Namespace(t)
		options := operator.Options{LeaseNamespace: namespace}
		one := newKind(t, version, namespace, options, operator.Reconciler[*Shop]{}, report("one"))
		two := newKind(t, version, namespace, options, operator.Reconciler[*Shop]{}, report("two"))
		one.run()
		two.run()
		shop := one.shop("a", "x")
		for n := range 10 {
			patch := fmt.Appendf(nil, `{"spec":{"text":"%d"}}`, n)
			var err error
			if shop, err = one.shops.Patch(t.Context(), shop.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			select { // that of the leader
			case <-one.ended:
			case <-two.ended:
			case <-time.After(time.Minute):
				t.Fatal("no call")
			}
		}
		one.quiet()
		two.quiet()
	})
}

// TestMistakeContested: another controller changes a field of a child that the configuration has.
func TestMistakeContested(t *testing.T) {
	t.Parallel()
	version := install(t)
	theirs := func(s *stand, field string, n int) {
		patch := fmt.Appendf(nil, `{"data":{%q:"theirs %d"}}`, field, n)
		if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Patch(s.t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "scaler"}); err != nil {
			s.t.Fatal(err)
		}
	}
	run := func(t *testing.T) *stand {
		s := newKind(t, version, testserver.Namespace(t), operator.Options{}, operator.Reconciler[*Shop]{}, func(ctx context.Context, s *stand, shop *Shop) error {
			_, err := s.c.Apply(ctx, s.child("a", map[string]string{"replicas": "2"}))
			return err
		})
		s.run()
		s.shop("a", "x")
		return s
	}
	t.Run("named", func(t *testing.T) {
		s := run(t)
		var last atomic.Int64
		line := s.named(lineContested, func(int) {
			cm, err := s.kube.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "a", metav1.GetOptions{})
			if err == nil && cm.Data["replicas"] == "2" {
				theirs(s, "replicas", int(last.Add(1)))
			}
		})
		if got := fmt.Sprint(line.Values["paths"], line.Values["manager"]); got != "[.data.replicas]scaler" {
			t.Errorf("the line has %v", line.Values)
		}
	})
	t.Run("quiet", func(t *testing.T) {
		s := run(t)
		s.calls(2)
		for n := range 10 {
			theirs(s, "other", n)
			s.calls(1)
		}
		s.quiet()
	})
}
