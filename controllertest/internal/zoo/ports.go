package zoo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/reconcile"
)

const (
	portsClaim  = "ports.zoo.example.com/claim" // label of the ConfigMaps that want a port
	portsDone   = "ports.zoo.example.com/done"  // annotation of a claim: the size that it has
	portsPort   = "ports.zoo.example.com/port"  // annotation of a claim
	portsSize   = "ports.zoo.example.com/size"  // label of a credential
	portsKept   = "ports.zoo.example.com/kept"  // annotation of the ledger: the claim that must exist
	portsLedger = "ledger"                      // the ConfigMap with the UIDs of the claims by port
)

// portsFamily gives each claim a credential, a Secret with a generated name, and the lowest free
// port of a ledger, and then marks the claim. It deletes a claim that its user retires. Its bugs
// are in the time between its last read and its write, in which the user does something.
func portsFamily() Family {
	return Family{Name: "ports", Scenario: portsScenario, Mutants: []Mutant{{
		Bug: "port-from-cache", Cause: "allocation from a cache that is behind",
		Does:      "takes the lowest port that is free in the cached ledger, and stores it without the version of the ledger",
		Reference: "kubernetes-sigs/cluster-api-ipam-provider-in-cluster#338",
		Plan:      "step-before@patch configmaps ledger data.0#1",
		Oracle:    controllertest.Liveness,
	}, {
		Bug: "no-ryw", Cause: "own writes not seen",
		Does:      "creates a second credential if the user edits the claim before the cache has the first one",
		Reference: "gardener/gardener#14274",
		Plan:      "two-steps@create secrets a-*#1",
		Oracle:    controllertest.Liveness,
	}, {
		Bug: "done-of-latest", Cause: "result of one version stored for another",
		Does:      "repeats the mark on the latest claim after a conflict, and marks a size that it has not seen before",
		Reference: "knative/serving#6162",
		Plan:      "two-steps@update configmaps a metadata.annotations#1",
		Oracle:    controllertest.Liveness,
	}, {
		Bug: "apply-recreates", Cause: "apply without a UID",
		Does:      "marks the claim by an apply, which creates a claim again that the user has deleted",
		Reference: "kubernetes/client-go#1346",
		Plan:      "user-delete(configmaps/a)@apply configmaps a metadata.annotations#1",
		Oracle:    controllertest.EndState,
	}, {
		Bug: "mark-by-name", Cause: "name taken for identity",
		Does:      "marks the claim by a patch of its name, and so a new claim without credential that has replaced it",
		Reference: "kubernetes-sigs/cluster-api#6741", Historic: true,
		Plan:   "user-recreate(configmaps/a)@patch configmaps a metadata.annotations#1",
		Oracle: controllertest.Liveness,
	}, {
		Bug: "get-then-delete", Cause: "deletion without a precondition",
		Does:      "reads whether the claim is retired, and deletes it by name although the user keeps it meanwhile",
		Reference: "kubernetes/kubernetes#29522", Historic: true,
		Plan:   "step-before@delete configmaps b#1",
		Oracle: controllertest.Liveness,
	}}}
}

func portsScenario(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "ports",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			l, err := newLoop(cfg, env, loopOptions{staleReads: bug == "no-ryw"})
			if err != nil {
				return err
			}
			configMaps, secrets := l.factory.Core().V1().ConfigMaps(), l.factory.Core().V1().Secrets()
			if err := l.watch(corev1.Resource("configmaps"), configMaps.Informer(), self); err != nil {
				return err
			}
			if err := l.watch(corev1.Resource("secrets"), secrets.Informer(), owner); err != nil {
				return err
			}
			p := &ports{
				loop: l, bug: bug, live: l.kube.CoreV1().ConfigMaps(env.Namespace), secrets: l.kube.CoreV1().Secrets(env.Namespace),
				cache: configMaps.Lister().ConfigMaps(env.Namespace), credentials: secrets.Lister().Secrets(env.Namespace),
			}
			return l.run(ctx, p.reconcile)
		},
		Script: []controllertest.Step{
			userStep("create the ledger and a", func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
				if _, err := configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: portsLedger}}, metav1.CreateOptions{}); err != nil {
					return err
				}
				return createsClaim(ctx, configMaps, "a")
			}),
			userStep("create b", func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
				return createsClaim(ctx, configMaps, "b")
			}),
			{Name: "size 2 of a", Do: editsConfigMap("a", `{"data":{"size":"2"}}`)},
			{Name: "retire b", Do: editsConfigMap("b", `{"data":{"retired":"true"}}`)},
			userStep("keep b, or create it again", func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
				_, err := configMaps.Patch(ctx, "b", types.MergePatchType, []byte(`{"data":{"retired":null}}`), metav1.PatchOptions{})
				if apierrors.IsNotFound(err) {
					err = createsClaim(ctx, configMaps, "b")
				}
				if err != nil {
					return err
				}
				_, err = configMaps.Patch(ctx, portsLedger, types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+portsKept+`":"b"}}}`), metav1.PatchOptions{})
				return err
			}),
		},
		// Another user of b would contradict the last step.
		UserObjects: []string{"configmaps/a"},
		Converged:   portsConverged,
	}
}

func createsClaim(ctx context.Context, configMaps typedcorev1.ConfigMapInterface, name string) error {
	_, err := configMaps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{portsClaim: "true"}}, Data: map[string]string{"size": "1"},
	}, metav1.CreateOptions{})
	return err
}

func portsConverged(s *controllertest.State) error {
	ledger := s.Get("configmaps", portsLedger)
	if ledger == nil {
		return nil // the user deletes all
	}
	if kept := ledger.GetAnnotations()[portsKept]; kept != "" && s.Get("configmaps", kept) == nil {
		return fmt.Errorf("the user keeps %s, which is absent", kept)
	}
	for _, claim := range s.Objects("configmaps") {
		if claim.GetLabels()[portsClaim] == "" {
			continue
		}
		if configMapData(claim)["retired"] != "" {
			return fmt.Errorf("%s is retired", claim.GetName())
		}
		size := configMapData(claim)["size"]
		if done := claim.GetAnnotations()[portsDone]; done != size {
			return fmt.Errorf("%s has size %q, want %s", claim.GetName(), done, size)
		}
		if port := claim.GetAnnotations()[portsPort]; configMapData(ledger)[port] != string(claim.GetUID()) {
			return fmt.Errorf("%s has port %q of another claim", claim.GetName(), port)
		}
		credentials := 0
		for _, secret := range s.Objects("secrets") {
			if !metav1.IsControlledBy(secret, claim) {
				continue
			}
			if credentials++; secret.GetLabels()[portsSize] != size {
				return fmt.Errorf("the credential of %s has size %s, want %s", claim.GetName(), secret.GetLabels()[portsSize], size)
			}
		}
		if credentials != 1 {
			return fmt.Errorf("%s has %d credentials, want 1", claim.GetName(), credentials)
		}
	}
	return nil
}

type ports struct {
	*loop
	bug         string
	live        typedcorev1.ConfigMapInterface
	secrets     typedcorev1.SecretInterface
	cache       listers.ConfigMapNamespaceLister
	credentials listers.SecretNamespaceLister
}

func (p *ports) reconcile(ctx context.Context, key types.NamespacedName) (none reconcile.Result, _ error) {
	all, err := snapshot(p.cache)
	if err != nil {
		return none, err
	}
	claim := all[key.Name]
	switch {
	case claim == nil || claim.Labels[portsClaim] == "":
		return none, nil
	case claim.Data["retired"] != "":
		return none, p.retire(ctx, claim)
	case claim.Annotations[portsDone] == claim.Data["size"]:
		return none, nil
	}
	if err := p.credential(ctx, key, claim); err != nil {
		return none, err
	}
	port, err := p.port(ctx, all, claim)
	if err != nil {
		return none, err
	}
	return none, p.mark(ctx, claim, port)
}

// credential makes the claim have one, of its size.
func (p *ports) credential(ctx context.Context, key types.NamespacedName, claim *corev1.ConfigMap) error {
	all, err := p.credentials.List(labels.Everything())
	if p.writes != nil && len(p.writes.Ambiguous(key)) > 0 { // the cache does not show what a lost response has created
		var live *corev1.SecretList
		if live, err = p.secrets.List(ctx, metav1.ListOptions{}); err == nil {
			all = nil
			for _, secret := range live.Items {
				all = append(all, &secret)
			}
		}
	}
	if err != nil {
		return err
	}
	size := claim.Data["size"]
	n := slices.IndexFunc(all, func(s *corev1.Secret) bool { return metav1.IsControlledBy(s, claim) })
	if n < 0 {
		secret := &corev1.Secret{ObjectMeta: childMeta(claim, "")}
		secret.GenerateName = claim.Name + "-"
		metav1.SetMetaDataLabel(&secret.ObjectMeta, portsSize, size)
		// A repeated request makes two.
		return p.kube.CoreV1().RESTClient().Post().Namespace(claim.Namespace).Resource("secrets").Body(secret).MaxRetries(0).Do(ctx).Error()
	}
	if all[n].Labels[portsSize] == size {
		return nil
	}
	secret := all[n].DeepCopy()
	metav1.SetMetaDataLabel(&secret.ObjectMeta, portsSize, size)
	_, err = p.secrets.Update(ctx, secret, metav1.UpdateOptions{})
	return err
}

// port returns the port of the claim. It takes the lowest one whose claim is absent.
func (p *ports) port(ctx context.Context, all map[string]*corev1.ConfigMap, claim *corev1.ConfigMap) (string, error) {
	ledger := all[portsLedger]
	if ledger == nil {
		return "", errors.New("there is no ledger")
	}
	present := map[string]bool{}
	for _, other := range all {
		present[string(other.UID)] = true
	}
	for _, port := range slices.Sorted(maps.Keys(ledger.Data)) {
		if ledger.Data[port] == string(claim.UID) {
			return port, nil
		}
	}
	n := 0
	for present[ledger.Data[strconv.Itoa(n)]] {
		n++
	}
	port := strconv.Itoa(n)
	if p.bug == "port-from-cache" {
		return port, p.patch(ctx, portsLedger, map[string]any{"data": map[string]string{port: string(claim.UID)}})
	}
	ledger = ledger.DeepCopy()
	ledger.Data = maps.Clone(ledger.Data)
	if ledger.Data == nil {
		ledger.Data = map[string]string{}
	}
	ledger.Data[port] = string(claim.UID)
	_, err := p.live.Update(ctx, ledger, metav1.UpdateOptions{})
	return port, err
}

// mark stores the size and the port in the claim.
func (p *ports) mark(ctx context.Context, claim *corev1.ConfigMap, port string) error {
	marks := map[string]string{portsDone: claim.Data["size"], portsPort: port}
	switch p.bug {
	case "apply-recreates":
		_, err := p.live.Apply(ctx, applycorev1.ConfigMap(claim.Name, claim.Namespace).WithAnnotations(marks), metav1.ApplyOptions{FieldManager: "zoo", Force: true})
		return err
	case "mark-by-name":
		return p.patch(ctx, claim.Name, map[string]any{"metadata": map[string]any{"annotations": marks}})
	}
	update := func(claim *corev1.ConfigMap) error {
		claim = claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, portsDone, claim.Data["size"])
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, portsPort, port)
		_, err := p.live.Update(ctx, claim, metav1.UpdateOptions{})
		return err
	}
	err := update(claim)
	if p.bug == "done-of-latest" && apierrors.IsConflict(err) {
		latest, err := p.live.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return update(latest)
	}
	return err
}

// retire deletes a claim that its user does not want any more.
func (p *ports) retire(ctx context.Context, claim *corev1.ConfigMap) error {
	live, err := p.live.Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil || live.Data["retired"] == "" {
		return ignoreNotFound(err)
	}
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(live.UID), ResourceVersion: ptr.To(live.ResourceVersion)}}
	if p.bug == "get-then-delete" {
		options = metav1.DeleteOptions{}
	}
	return ignoreNotFound(p.live.Delete(ctx, claim.Name, options))
}

func (p *ports) patch(ctx context.Context, name string, patch map[string]any) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = p.live.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}
