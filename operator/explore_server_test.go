package operator_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// A rented box has items, and an account at a service that makes a second one if it is asked twice.
type rented struct {
	c        *operator.Controller
	boxes    *crd.Client[*Box]
	accounts *cloud.Cloud
}

// rentedVersion is that of a definition of its own, because the two tests of boxes run at the same time.
var rentedVersion = schema.GroupVersion{Group: "rented.example.com", Version: "v1"}

// readersVersion is that of TestServerReaders.
var readersVersion = schema.GroupVersion{Group: "readers.example.com", Version: "v1"}

const accountAnnotation = "box.example.com/account"

// find returns the account of a box with the token.
func (r *rented) find(ctx context.Context, box, token string) (id string, found bool, err error) {
	list, err := r.accounts.List(ctx, box)
	for _, account := range list {
		if account.Token == token {
			return account.ID, true, err
		}
	}
	return "", false, err
}

// account is the account of a box, with a tag that is the text of the box.
func (r *rented) account(b *Box) external.Resource {
	tags := map[string]string{"text": b.Spec.Text}
	return external.Resource{
		Annotation: accountAnnotation,
		Find:       func(ctx context.Context, token string) (string, bool, error) { return r.find(ctx, b.Name, token) },
		Create: func(ctx context.Context, token string) (string, error) {
			made, err := r.accounts.Create(ctx, cloud.Resource{Name: b.Name, Token: token, Tags: tags})
			return made.ID, err
		},
		Observe: func(ctx context.Context, id string) (external.State, error) {
			account, err := r.accounts.Get(ctx, id)
			switch {
			case errors.Is(err, cloud.ErrNotFound):
				return external.Gone, nil
			case err != nil:
				return "", err
			case !maps.Equal(account.Tags, tags):
				return external.Different, nil
			}
			return external.Current, nil
		},
		Update: func(ctx context.Context, id string) error { return r.accounts.Update(ctx, id, tags) },
		Delete: func(ctx context.Context, id string) error {
			if err := r.accounts.Delete(ctx, id); !errors.Is(err, cloud.ErrNotFound) {
				return err
			}
			return nil
		},
		Interval: time.Second,
	}
}

func (r *rented) reconcile(ctx context.Context, b *Box) (reconcile.Result, error) {
	account, err := external.Ensure(ctx, r.boxes.Namespace(b.Namespace), b, r.account(b))
	if account.ID == "" {
		return reconcile.Result{RequeueAfter: account.RequeueAfter}, err
	}
	b.Status.URL = "https://accounts/" + account.ID
	var items []any
	for _, item := range b.Spec.Items {
		items = append(items, newItem(b.Namespace, item, b.Spec.Text))
	}
	_, err = r.c.Apply(ctx, items...)
	return reconcile.Result{RequeueAfter: account.RequeueAfter}, err
}

func (r *rented) cleanup(ctx context.Context, b *Box) error {
	return external.Delete(ctx, r.boxes.Namespace(b.Namespace), b, r.account(b))
}

// exploreOptions returns the options of an exploration, whose time EXPLORE_BUDGET sets.
func exploreOptions(t *testing.T) controllertest.Options {
	t.Helper()
	options := controllertest.Options{Config: testserver.Config(t), Sample: 24, Parallel: 8, ConvergeTimeout: 90 * time.Second, KeepNamespaces: true}
	if text := os.Getenv("EXPLORE_BUDGET"); text != "" {
		var err error
		if options.Budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("EXPLORE_BUDGET: %v", err)
		}
		options.Sample, options.Parallel = 0, 24
	}
	return options
}

// TestServerRented runs the life of rented boxes with a fault at each moment: no account is made twice or left,
// no status is lost, and no item is deleted by mistake. EXPLORE_BUDGET, such as 10m, sets its time.
func TestServerRented(t *testing.T) {
	t.Parallel()
	installBoxes(t, rentedVersion)
	options := exploreOptions(t)
	edit := func(patch string) func(context.Context, *crd.Client[*Box]) error {
		return func(ctx context.Context, boxes *crd.Client[*Box]) error {
			_, err := boxes.Patch(ctx, "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
	}
	create := func(items ...string) func(context.Context, *crd.Client[*Box]) error {
		return func(ctx context.Context, boxes *crd.Client[*Box]) error {
			_, err := boxes.Create(ctx, &Box{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: BoxSpec{Items: items}}, metav1.CreateOptions{})
			return err
		}
	}
	controllertest.Explore(t, controllertest.Scenario{
		Name: "boxes",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			op, err := operator.New(cfg, operator.Options{Name: "boxes", Namespace: env.Namespace})
			if err != nil {
				return err
			}
			r := &rented{accounts: env.Cloud}
			if r.boxes, err = crd.New[*Box](op.Config, rentedVersion.WithKind("Box"), "boxes"); err != nil {
				return err
			}
			r.c = operator.Kind(op, rentedVersion.WithResource("boxes"), operator.Reconciler[*Box]{
				Reconcile: r.reconcile, Finalizer: boxFinalizer, Cleanup: r.cleanup, Prune: true, Phases: phases(),
			})
			operator.Children(r.c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
			return op.Run(ctx)
		},
		Script: []controllertest.Step{
			boxStep("create", create("x", "y")),
			boxStep("another item", edit(`{"spec":{"items":["y","z"],"text":"two"}}`)),
			accountStep("somebody edits the account", func(ctx context.Context, accounts *cloud.Cloud, id string) error {
				return accounts.Update(ctx, id, map[string]string{"text": "theirs"})
			}),
			accountStep("somebody deletes the account", func(ctx context.Context, accounts *cloud.Cloud, id string) error {
				return accounts.Delete(ctx, id)
			}),
			boxStep("delete", func(ctx context.Context, boxes *crd.Client[*Box]) error {
				return boxes.Delete(ctx, "a", metav1.DeleteOptions{})
			}),
			boxStep("create again", create("y")),
		},
		Converged: boxed,
		Invariants: []controllertest.Invariant{
			{Name: "each account has a box with the finalizer", Check: accountsHeld},
			{Name: "no item is missing that a box had and has", Check: itemsKept},
		},
		Mask: func(obj *unstructured.Unstructured) { // the ids differ
			annotations := obj.GetAnnotations()
			delete(annotations, accountAnnotation)
			obj.SetAnnotations(annotations)
			unstructured.RemoveNestedField(obj.Object, "status", "url")
		},
	}, options)
}

func boxStep(name string, do func(context.Context, *crd.Client[*Box]) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		boxes, err := crd.New[*Box](cfg, rentedVersion.WithKind("Box"), "boxes")
		if err != nil {
			return err
		}
		return do(ctx, boxes.Namespace(env.Namespace))
	}}
}

// accountStep does something to the account of the box, if there is one.
func accountStep(name string, do func(ctx context.Context, accounts *cloud.Cloud, id string) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, _ *rest.Config, env *controllertest.Env) error {
		accounts := env.Cloud.Resources()
		if len(accounts) == 0 {
			return nil
		}
		if err := do(ctx, env.Cloud, accounts[0].ID); !errors.Is(err, cloud.ErrNotFound) {
			return err
		}
		return nil
	}}
}

// boxed returns nil if the items and the account are those of the box.
func boxed(s *controllertest.State) error {
	box := s.Get("boxes.rented.example.com", "a")
	var items []string
	for _, item := range s.Objects("configmaps") {
		if item.GetName() != "kube-root-ca.crt" {
			items = append(items, item.GetName())
		}
	}
	slices.Sort(items)
	if box == nil {
		if len(items) > 0 || len(s.Cloud()) > 0 {
			return fmt.Errorf("the box is gone, and items %q and accounts %v are left", items, s.Cloud())
		}
		return nil
	}
	wanted, _, _ := unstructured.NestedStringSlice(box.Object, "spec", "items")
	url, _, _ := unstructured.NestedString(box.Object, "status", "url")
	text, _, _ := unstructured.NestedString(box.Object, "spec", "text")
	phase, _, _ := unstructured.NestedString(box.Object, "status", "phase")
	observed, _, _ := unstructured.NestedInt64(box.Object, "status", "observedGeneration")
	switch accounts := s.Cloud(); {
	case box.GetDeletionTimestamp() != nil:
		return errors.New("the box is being deleted")
	case !slices.Equal(items, wanted):
		return fmt.Errorf("items %q, want %q", items, wanted)
	case len(accounts) != 1 || url != "https://accounts/"+accounts[0].ID:
		return fmt.Errorf("accounts %v, the status has %q", accounts, url)
	case accounts[0].Tags["text"] != text:
		return fmt.Errorf("the account has the tags %v, the box has the text %q", accounts[0].Tags, text)
	case phase != "Up" || observed != box.GetGeneration():
		return fmt.Errorf("phase %q at generation %d of %d", phase, observed, box.GetGeneration())
	}
	return nil
}

// accountsHeld is about existing boxes: boxed finds an account without one.
func accountsHeld(s *controllertest.State) error {
	if len(s.Cloud()) > 1 {
		return fmt.Errorf("accounts %v, want one at most", s.Cloud())
	}
	for _, box := range s.Objects("boxes.rented.example.com") {
		if len(s.Cloud()) > 0 && !slices.Contains(box.GetFinalizers(), boxFinalizer) {
			return fmt.Errorf("there is an account, and box %s has no finalizer", box.GetUID())
		}
	}
	return nil
}

// itemsKept: once the status has shown both items, the one that stays is not deleted.
func itemsKept(s *controllertest.State) error {
	box := s.Get("boxes.rented.example.com", "a")
	if box == nil || box.GetDeletionTimestamp() != nil {
		return nil
	}
	phase, _, _ := unstructured.NestedString(box.Object, "status", "phase")
	if item := s.Get("configmaps", "y"); phase == "Up" && (item == nil || item.GetDeletionTimestamp() != nil || !strings.HasPrefix(string(item.GetOwnerReferences()[0].UID), string(box.GetUID()))) {
		return fmt.Errorf("item y is %v", item)
	}
	return nil
}

// TestServerReaders runs boxes that read Secrets by a name and by a selector, with a fault at each moment: the
// last call has read what there is. EXPLORE_BUDGET, such as 10m, sets its time.
func TestServerReaders(t *testing.T) {
	t.Parallel()
	installBoxes(t, readersVersion)
	options := exploreOptions(t)
	secretStep := func(name string, do func(ctx context.Context, secrets typedcorev1.SecretInterface) error) controllertest.Step {
		return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			client, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return err
			}
			return do(ctx, client.CoreV1().Secrets(env.Namespace))
		}}
	}
	secret := func(name, label, text string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": label}}, Data: map[string][]byte{"text": []byte(text)}}
	}
	create := func(s *corev1.Secret) func(context.Context, typedcorev1.SecretInterface) error {
		return func(ctx context.Context, secrets typedcorev1.SecretInterface) error {
			_, err := secrets.Create(ctx, s.DeepCopy(), metav1.CreateOptions{}) // runs share the step
			return err
		}
	}
	update := func(s *corev1.Secret) func(context.Context, typedcorev1.SecretInterface) error {
		return func(ctx context.Context, secrets typedcorev1.SecretInterface) error {
			_, err := secrets.Update(ctx, s.DeepCopy(), metav1.UpdateOptions{})
			return err
		}
	}
	remove := func(name string) func(context.Context, typedcorev1.SecretInterface) error {
		return func(ctx context.Context, secrets typedcorev1.SecretInterface) error {
			return secrets.Delete(ctx, name, metav1.DeleteOptions{})
		}
	}
	controllertest.Explore(t, controllertest.Scenario{
		Name: "readers",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			op, err := operator.New(cfg, operator.Options{Name: "readers", Namespace: env.Namespace})
			if err != nil {
				return err
			}
			var secrets *operator.Reader[*corev1.Secret]
			c := operator.Kind(op, readersVersion.WithResource("boxes"), operator.Reconciler[*Box]{
				Reconcile: func(ctx context.Context, b *Box) (reconcile.Result, error) {
					text := "none"
					settings, err := secrets.Get(ctx, b.Namespace, "settings")
					switch {
					case err == nil:
						text = string(settings.Data["text"])
					case !apierrors.IsNotFound(err):
						return reconcile.Result{}, err
					}
					listed, err := secrets.List(ctx, b.Namespace, labels.SelectorFromSet(labels.Set{"app": "box"}))
					if err != nil {
						return reconcile.Result{}, err
					}
					b.Status.URL = text + " " + names(listed, nil)
					return reconcile.Result{}, nil
				},
			})
			secrets = operator.Reads(c, secretsVersion, operator.Reading[*corev1.Secret]{})
			return op.Run(ctx)
		},
		Script: []controllertest.Step{
			{Name: "create", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				boxes, err := crd.New[*Box](cfg, readersVersion.WithKind("Box"), "boxes")
				if err != nil {
					return err
				}
				_, err = boxes.Namespace(env.Namespace).Create(ctx, &Box{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
				return err
			}},
			secretStep("the settings come", create(secret("settings", "other", "one"))),
			secretStep("the settings change", update(secret("settings", "other", "two"))),
			secretStep("a Secret is listed", create(secret("listed", "box", ""))),
			secretStep("the settings are listed", update(secret("settings", "box", "two"))),
			secretStep("the Secret is not listed", update(secret("listed", "other", ""))),
			secretStep("the settings go", remove("settings")),
			secretStep("the settings come again", create(secret("settings", "box", "three"))),
		},
		Converged: func(s *controllertest.State) error {
			box := s.Get("boxes.readers.example.com", "a")
			if box == nil {
				return nil
			}
			want, listed := "none", []string{}
			for _, o := range s.Objects("secrets") {
				if o.GetName() == "settings" {
					encoded, _, _ := unstructured.NestedString(o.Object, "data", "text")
					text, err := base64.StdEncoding.DecodeString(encoded)
					if err != nil {
						return err
					}
					want = string(text)
				}
				if o.GetLabels()["app"] == "box" {
					listed = append(listed, o.GetName())
				}
			}
			slices.Sort(listed)
			want += " " + strings.Join(listed, ",")
			if url, _, _ := unstructured.NestedString(box.Object, "status", "url"); url != want {
				return fmt.Errorf("the box has read %q, there is %q", url, want)
			}
			return nil
		},
	}, options)
}
