package mistakes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/ssa"
)

// pieces runs both subtests of a mistake in a function of a key. set changes the stand before it runs,
// in the way of the mistake if wrong is true. The line has the values.
func pieces(t *testing.T, line string, set func(s *stand, wrong bool), values map[string]string) {
	t.Helper()
	run := func(t *testing.T, wrong bool) *stand {
		s := newPieces(t, testserver.Config(t), testserver.Namespace(t))
		set(s, wrong)
		s.run()
		s.configMap("own-a")
		return s
	}
	t.Run("named", func(t *testing.T) {
		s := run(t, true)
		n := s.named(line, func(n int) { s.touch(s.touched, n) })
		for key, want := range values {
			if got := fmt.Sprint(n.Values[key]); !strings.Contains(got, want) {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
	})
	t.Run("quiet", func(t *testing.T) {
		s := run(t, false)
		s.calls(1)
		for n := range 20 {
			s.touch(s.touched, n)
			s.calls(1)
		}
		s.stop()
		s.quiet()
	})
}

// TestMistakeClient: a client of the configuration that New got, in place of Operator.Config.
func TestMistakeClient(t *testing.T) {
	t.Parallel()
	pieces(t, lineStray, func(s *stand, wrong bool) {
		s.op.Writes(corev1.Resource("configmaps"), "patch")
		client := s.client
		if wrong {
			client = s.kube
		}
		s.call = func(ctx context.Context, cm *corev1.ConfigMap) error {
			config := applycorev1.ConfigMap(cm.Name, cm.Namespace).WithData(map[string]string{"touched": cm.Labels["touched"]})
			_, err := ssa.Apply(ctx, "example.com/mistakes", client.CoreV1().ConfigMaps(cm.Namespace).Apply, config)
			return err
		}
	}, map[string]string{"name": "own-a"})
}

// secret creates an object in a call.
func (s *stand) secret(ctx context.Context, secret *corev1.Secret) error {
	_, err := s.client.CoreV1().Secrets(secret.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// secretOf returns an object with the name of another one.
func secretOf(cm *corev1.ConfigMap) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cm.Namespace, Name: cm.Name}}
}

// TestMistakeUndeclared: a request that Writes does not declare.
func TestMistakeUndeclared(t *testing.T) {
	t.Parallel()
	pieces(t, lineUndeclared, func(s *stand, wrong bool) {
		s.op.Writes(corev1.Resource("configmaps"), "patch")
		if !wrong {
			s.op.Writes(corev1.Resource("secrets"), "create")
		}
		s.call = func(ctx context.Context, cm *corev1.ConfigMap) error { return s.secret(ctx, secretOf(cm)) }
	}, map[string]string{"verb": "create", "resource": "secrets"})
}

// TestMistakeVerb: a verb that no request has is an error of Run. The verb of another request is
// logged.
func TestMistakeVerb(t *testing.T) {
	t.Parallel()
	s := newPieces(t, testserver.Config(t), testserver.Namespace(t))
	s.op.Writes(corev1.Resource("secrets"), "craete")
	wantError(t, s.startError(), `no request has the verb "craete"`, "use some of", "create")
	pieces(t, lineUndeclared, func(s *stand, wrong bool) {
		verb := "create"
		if wrong {
			verb = "update"
		}
		s.op.Writes(corev1.Resource("secrets"), verb)
		s.call = func(ctx context.Context, cm *corev1.ConfigMap) error { return s.secret(ctx, secretOf(cm)) }
	}, map[string]string{"verb": "create"})
}

// TestMistakeSubresource: a right for a subresource that the resource does not have.
func TestMistakeSubresource(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, resource schema.GroupResource) *stand {
		s := newStand(t, testserver.Config(t), testserver.Namespace(t), operator.Options{StartTimeout: 2 * time.Second})
		s.pieces(nil)
		s.op.Writes(resource, "update")
		return s
	}
	t.Run("named", func(t *testing.T) {
		s := run(t, appsv1.Resource("deployments/staus"))
		wantError(t, s.startError(), "deployments.apps has no subresource staus: use one that it has, or add it to the CustomResourceDefinition")
	})
	t.Run("quiet", func(t *testing.T) {
		s := run(t, appsv1.Resource("deployments/status"))
		s.run()
		s.configMap("own-a")
		s.calls(1)
		s.quiet()
	})
}

// TestMistakeEndlessCleanup: a cleanup waits for what never comes. The call has a Timeout, and its error
// is logged and in the condition Ready.
func TestMistakeEndlessCleanup(t *testing.T) {
	t.Parallel()
	version := install(t)
	run := func(t *testing.T, cleanup func(ctx context.Context) error) *stand {
		r := operator.Reconciler[*Shop]{Finalizer: "example.com/bucket", Cleanup: func(ctx context.Context, _ *Shop) error { return cleanup(ctx) }}
		s := newKind(t, version, testserver.Namespace(t), operator.Options{}, r, func(context.Context, *stand, *Shop) error { return nil })
		s.c.Loop.Timeout = time.Second
		s.run()
		s.shop("a", "x")
		s.calls(1)
		if err := s.shops.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Run("named", func(t *testing.T) {
		var free atomic.Bool
		s := run(t, func(ctx context.Context) error {
			if free.Load() {
				return nil
			}
			<-ctx.Done()
			return fmt.Errorf("the bucket is not empty: %w", ctx.Err())
		})
		n := s.named(lineFailed, nil)
		if fmt.Sprint(n.Values["class"]) != "timeout" || !strings.Contains(fmt.Sprint(n.Err), "example.com/bucket: cleanup: the bucket is not empty") {
			t.Errorf("the line has %v and the error %v", n.Values, n.Err)
		}
		free.Store(true)
	})
	t.Run("quiet", func(t *testing.T) {
		s := run(t, func(context.Context) error { return nil })
		s.calls(1)
		s.quiet()
	})
}

// TestMistakeForgottenOwns: a controller makes objects and does not watch them.
func TestMistakeForgottenOwns(t *testing.T) {
	t.Parallel()
	pieces(t, lineOwns, func(s *stand, wrong bool) {
		s.op.Writes(corev1.Resource("secrets"), "create")
		if !wrong {
			operator.Owns(s.c, corev1.Resource("secrets"), s.factory.Core().V1().Secrets())
		}
		s.call = func(ctx context.Context, cm *corev1.ConfigMap) error {
			secret := secretOf(cm)
			return errors.Join(owner.SetController(cm, corev1.SchemeGroupVersion.WithKind("ConfigMap"), secret), s.secret(ctx, secret))
		}
	}, map[string]string{"resource": "secrets", "object": "own-a", "controller": "pieces"})
}

// TestMembersNeedNoOwns: a member of a Set, whose kinds are watched on demand, needs no Owns.
func TestMembersNeedNoOwns(t *testing.T) {
	t.Parallel()
	pieces(t, lineOwns, func(s *stand, wrong bool) {
		s.op.Writes(corev1.Resource("secrets"), "create")
		s.call = func(ctx context.Context, cm *corev1.ConfigMap) error {
			secret := secretOf(cm)
			if !wrong {
				secret.Labels = map[string]string{"applyset.kubernetes.io/part-of": "applyset-x"}
			}
			return errors.Join(owner.SetController(cm, corev1.SchemeGroupVersion.WithKind("ConfigMap"), secret), s.secret(ctx, secret))
		}
	}, map[string]string{"resource": "secrets"})
}

// TestMistakeOwnerKind: an owner reference with the kind of another object.
func TestMistakeOwnerKind(t *testing.T) {
	t.Parallel()
	pieces(t, lineWrongKind, func(s *stand, wrong bool) {
		s.op.Writes(corev1.Resource("secrets"), "create")
		operator.Owns(s.c, corev1.Resource("secrets"), s.factory.Core().V1().Secrets())
		kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
		if wrong {
			kind.Kind = "Configmap"
		}
		s.call = func(ctx context.Context, cm *corev1.ConfigMap) error {
			secret := secretOf(cm)
			return errors.Join(owner.SetController(cm, kind, secret), s.secret(ctx, secret))
		}
	}, map[string]string{"reference": "v1 Configmap own-a", "kind": "/v1, Kind=ConfigMap"})
}

// TestMistakeOwnerNamespace: an owner reference to an object of another namespace, which
// owner.SetController rejects and a program sets by hand.
func TestMistakeOwnerNamespace(t *testing.T) {
	t.Parallel()
	other := testserver.Namespace(t)
	pieces(t, lineElsewhere, func(s *stand, wrong bool) {
		s.op.Writes(corev1.Resource("secrets"), "create")
		operator.Owns(s.c, corev1.Resource("secrets"), s.factory.Core().V1().Secrets())
		s.call = func(ctx context.Context, cm *corev1.ConfigMap) error {
			secret := secretOf(cm)
			if wrong {
				secret.Namespace = other
				if err := owner.SetController(cm, corev1.SchemeGroupVersion.WithKind("ConfigMap"), secret); err == nil {
					t.Error("SetController() of another namespace is no error")
				}
			}
			secret.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(cm, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
			return s.secret(ctx, secret)
		}
	}, map[string]string{"object": other + "/own-a"})
}

// TestMistakeStatusInUpdate: a status in an update of the object, which the API server ignores.
func TestMistakeStatusInUpdate(t *testing.T) {
	t.Parallel()
	pieces(t, lineStatus, func(s *stand, wrong bool) {
		s.op.Writes(appsv1.Resource("deployments"), "create", "get", "update")
		s.op.Writes(appsv1.Resource("deployments/status"), "update")
		config := rest.CopyConfig(s.op.Config)
		config.ContentType, config.AcceptContentTypes = "application/json", "application/json" // as clients of custom resources send
		deployments := kubernetes.NewForConfigOrDie(config).AppsV1().Deployments(s.namespace)
		s.call = func(ctx context.Context, cm *corev1.ConfigMap) error {
			labels := map[string]string{"app": cm.Name}
			d, err := deployments.Get(ctx, cm.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				d, err = deployments.Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: cm.Name}, Spec: appsv1.DeploymentSpec{
					Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}},
				}}, metav1.CreateOptions{})
			}
			if err != nil {
				return err
			}
			d.Spec.Replicas = ptr.To(*d.Spec.Replicas + 1)
			if !wrong { // first the spec with the status as it is, then the status
				if d, err = deployments.Update(ctx, d, metav1.UpdateOptions{}); err != nil {
					return err
				}
			}
			d.Status.ObservedGeneration = d.Generation
			if wrong {
				_, err = deployments.Update(ctx, d, metav1.UpdateOptions{})
			} else {
				_, err = deployments.UpdateStatus(ctx, d, metav1.UpdateOptions{})
			}
			return err
		}
	}, map[string]string{"resource": "deployments.apps", "object": "own-a"})
}

// TestMistakeEventNames: each Event about an object has another note.
func TestMistakeEventNames(t *testing.T) {
	t.Parallel()
	pieces(t, lineEvents, func(s *stand, wrong bool) {
		s.call = func(_ context.Context, cm *corev1.ConfigMap) error {
			for n := range 100 {
				note := "bucket exists"
				if wrong {
					note = fmt.Sprint("request ", n)
				}
				s.c.Event(cm, corev1.EventTypeNormal, "Created", "Create", note)
			}
			return nil
		}
	}, map[string]string{"reason": "limited", "err": "leave out of a note what differs each time", "regarding": "own-a"})
}

// TestMistakeIgnoredContext: a function waits for a channel and not for its context.
func TestMistakeIgnoredContext(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, wait func(ctx context.Context) error) *stand {
		s := newPieces(t, testserver.Config(t), testserver.Namespace(t))
		s.c.Loop.Timeout = time.Second
		s.call = func(ctx context.Context, _ *corev1.ConfigMap) error { return wait(ctx) }
		return s
	}
	t.Run("named", func(t *testing.T) {
		never := make(chan struct{})
		s := run(t, func(context.Context) error {
			<-never
			return nil
		})
		stop := s.run()
		s.configMap("own-a")
		if values := s.named(lineDeaf, nil).Values; values["controller"] != "pieces" || !strings.Contains(fmt.Sprint(values["key"]), "own-a") {
			t.Errorf("the line has %v", values)
		}
		close(never)
		stop()
	})
	t.Run("quiet", func(t *testing.T) {
		s := run(t, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
		s.run()
		s.configMap("own-a")
		s.calls(1)
		s.quiet()
	})
}

// TestMistakeHiddenDeletion: a predicate filters deletions.
func TestMistakeHiddenDeletion(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, pass enqueue.Predicate[*corev1.ConfigMap]) *stand {
		s := newPieces(t, testserver.Config(t), testserver.Namespace(t), pass)
		s.run()
		s.configMap("own-a")
		s.calls(1)
		if err := s.kube.CoreV1().ConfigMaps(s.namespace).Delete(t.Context(), "own-a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Run("named", func(t *testing.T) {
		s := run(t, func(e enqueue.Event[*corev1.ConfigMap]) bool { return !e.Deleted })
		if values := s.named(lineHidden, nil).Values; values["controller"] != "pieces" || values["object"] != s.namespace+"/own-a" {
			t.Errorf("the line has %v", values)
		}
	})
	t.Run("quiet", func(t *testing.T) {
		s := run(t, enqueue.ResourceVersionChanged[*corev1.ConfigMap])
		s.calls(1) // of the deletion
		s.quiet()
	})
}

// TestMistakeMissingRight: the Role lacks one verb.
func TestMistakeMissingRight(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, lacks string) *stand {
		// The rules of an operator that is not run.
		registered := func(s *stand) {
			s.op.Writes(corev1.Resource("secrets"), "create")
			s.call = func(ctx context.Context, cm *corev1.ConfigMap) error { return s.secret(ctx, secretOf(cm)) }
		}
		draft := newPieces(t, testserver.Config(t), testserver.Namespace(t))
		registered(draft)
		rules, _ := draft.op.Rules()
		for i := range rules {
			if lacks != "" && rules[i].Resources[0] == "secrets" {
				rules[i].Verbs = []string{"get"}
			}
		}
		s := newPieces(t, testserver.Limited(t, draft.namespace, rules...), draft.namespace)
		registered(s)
		s.run()
		s.configMap("own-a")
		return s
	}
	t.Run("named", func(t *testing.T) {
		s := run(t, "create")
		n := s.named(lineFailed, nil)
		if fmt.Sprint(n.Values["class"]) != "forbidden" || n.Values["deniedResource"] != "secrets" || !strings.Contains(fmt.Sprint(n.Err), `cannot create resource "secrets"`) {
			t.Errorf("the line has %v and the error %v", n.Values, n.Err)
		}
	})
	t.Run("quiet", func(t *testing.T) {
		s := run(t, "")
		s.calls(1)
		s.quiet()
	})
}

// TestMistakeEarlyProbe: a probe before the caches are full fails, and names the informers.
func TestMistakeEarlyProbe(t *testing.T) {
	t.Parallel()
	probed := func(t *testing.T, arrived chan<- struct{}, release <-chan struct{}) (s *stand, probe func() (code int, text string)) {
		config := testserver.Config(t)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(req *http.Request) (*http.Response, error) {
				if strings.HasSuffix(req.URL.Path, "/configmaps") {
					select {
					case arrived <- struct{}{}:
					default:
					}
					<-release
				}
				return next.RoundTrip(req)
			})
		})
		s = newPieces(t, config, testserver.Namespace(t))
		s.run()
		return s, func() (code int, text string) {
			w := httptest.NewRecorder()
			s.op.Mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", http.NoBody))
			return w.Code, w.Body.String()
		}
	}
	t.Run("named", func(t *testing.T) {
		arrived, release := make(chan struct{}, 1), make(chan struct{})
		_, probe := probed(t, arrived, release)
		receive(t, arrived)
		if code, text := probe(); code != http.StatusServiceUnavailable || !strings.Contains(text, "informers") {
			t.Errorf("before the caches are full: %d %q", code, text)
		}
		close(release)
	})
	t.Run("quiet", func(t *testing.T) {
		release := make(chan struct{})
		close(release)
		s, probe := probed(t, nil, release)
		s.configMap("own-a")
		s.calls(1)
		if code, text := probe(); code != http.StatusOK {
			t.Errorf("with full caches: %d %q", code, text)
		}
		s.quiet()
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
