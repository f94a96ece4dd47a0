package controllertest_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/queue"
)

// TestIncompleteConverged: a Converged that does not look at everything does not hold
// a fault's delay against a correct controller.
//
// Proves X1.
func TestIncompleteConverged(t *testing.T) {
	t.Parallel()
	ours := func(env *controllertest.Env) workqueue.TypedRateLimitingInterface[string] {
		q := queue.New(queue.Config[string]{})
		env.Queue(q)
		return q
	}
	clientgos := func(env *controllertest.Env) workqueue.TypedRateLimitingInterface[string] {
		q := newClientgoQueue(env)
		env.Queue(q)
		return q
	}
	delays := []controllertest.Kind{controllertest.Conflict, controllertest.DropRequest, controllertest.Forbidden}
	tests := []struct {
		name     string
		follower follower
		faults   []controllertest.Kind
		early    bool // the end of the delay is not foreseen
	}{
		{
			name:   "client-go waits for Retry-After",
			faults: []controllertest.Kind{controllertest.TooManyRequests, controllertest.Unavailable, controllertest.CommitThen503},
		},
		{name: "a slow body", faults: []controllertest.Kind{controllertest.Slow, controllertest.NoBookmark}},
		{name: "a delayed key", follower: follower{queue: ours, retry: 1500 * time.Millisecond}, faults: delays},
		{name: "a delayed key of client-go's queue", follower: follower{queue: clientgos, retry: 1500 * time.Millisecond}, faults: delays, early: true},
		{name: "a delayed key of a queue that is not registered", follower: follower{retry: 1500 * time.Millisecond}, faults: delays, early: true},
		{
			name: "a call that waits", faults: delays,
			follower: follower{queue: ours, reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
				err := copyAndNote(ctx, f, a)
				if err != nil {
					select {
					case <-time.After(1500 * time.Millisecond):
					case <-ctx.Done():
					}
				}
				return err
			}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.follower.reconcile == nil {
				test.follower.reconcile = copyAndNote
			}
			s := test.follower.scenario()
			s.Converged = copiedToB
			o := quick(t)
			o.Faults = test.faults
			report := run(t, s, o)
			for _, f := range report.Failures {
				t.Error(f)
			}
			if report.Valid < 2 || report.Valid != report.Plans {
				t.Errorf("%d of %d plans are valid: %q", report.Valid, report.Plans, report.Invalid)
			}
			want := `after step "create a": Converged accepted the state too early: let it check configmaps/a .metadata.annotations.noted, which came later under `
			if text := strings.Join(report.TooEarly, "\n"); (text != "") != test.early || test.early && (!strings.Contains(text, want) || !strings.Contains(report.String(), want)) {
				t.Errorf("too early: %q; want that: %t", text, test.early)
			}
		})
	}
}

// TestPolling: keys that are delayed again and again are at rest.
func TestPolling(t *testing.T) {
	t.Parallel()
	f := follower{
		queue: func(env *controllertest.Env) workqueue.TypedRateLimitingInterface[string] {
			q := queue.New(queue.Config[string]{})
			env.Queue(q)
			q.AddAfter("slow", time.Hour)
			return q
		},
		retry: time.Second,
		reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
			if a.Annotations["noted"] == "" {
				return copyAndNote(ctx, f, a)
			}
			return errors.New("to be called again")
		},
	}
	o := quick(t)
	o.Parallel, o.Faults = 1, []controllertest.Kind{controllertest.Conflict}
	report := run(t, f.scenario(), o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid == 0 {
		t.Error("no plan was valid")
	}
}

// TestPresentState: a state is accepted only if nothing has happened since it was
// listed.
func TestPresentState(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	shown := map[string]bool{} // by namespace: the last state that Converged was asked about has the annotation
	f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		if a.Annotations["late"] != "" {
			return nil
		}
		// Converged is asked 250ms after a was created, and takes 300ms.
		select {
		case <-time.After(400 * time.Millisecond):
		case <-ctx.Done():
		}
		return f.annotate(ctx, a, "late", "yes")
	}}
	s := f.scenario()
	s.Converged = func(s *controllertest.State) error {
		a := s.Get("configmaps", "a")
		mu.Lock()
		shown[s.Namespace()] = a != nil && a.GetAnnotations()["late"] != ""
		mu.Unlock()
		time.Sleep(300 * time.Millisecond) // a busy machine
		return nil
	}
	s.Script = append(s.Script, controllertest.Step{Name: "look", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		a, err := kube.CoreV1().ConfigMaps(env.Namespace).Get(ctx, "a", metav1.GetOptions{})
		mu.Lock()
		defer mu.Unlock()
		if err == nil && a.Annotations["late"] != "" && !shown[env.Namespace] {
			t.Errorf("%s: a step was over although Converged had not seen the present state", env.Namespace)
		}
		return err
	}})
	o := quick(t)
	o.Faults = []controllertest.Kind{controllertest.Slow}
	for _, f := range run(t, s, o).Failures {
		t.Error(f)
	}
}

const accountFinalizer = "example.com/account"

// account creates the account of a, behind a finalizer, or deletes it if a is being deleted. It
// returns the account, or nil if there is none.
func (f *following) account(ctx context.Context, a *corev1.ConfigMap, want cloud.Resource) (*cloud.Resource, error) {
	accounts, err := f.env.Cloud.List(ctx, want.Name)
	if err != nil {
		return nil, err
	}
	api := f.kube.CoreV1().ConfigMaps(f.namespace)
	switch held := slices.Contains(a.Finalizers, accountFinalizer); {
	case a.DeletionTimestamp != nil && !held:
		return nil, nil
	case a.DeletionTimestamp != nil:
		for _, account := range accounts {
			if err := f.env.Cloud.Delete(ctx, account.ID); err != nil && !errors.Is(err, cloud.ErrNotFound) {
				return nil, err
			}
		}
		a.Finalizers = nil
		_, err = api.Update(ctx, a, metav1.UpdateOptions{})
		return nil, err
	case !held:
		a.Finalizers = []string{accountFinalizer}
		updated, err := api.Update(ctx, a, metav1.UpdateOptions{})
		if err != nil {
			return nil, err
		}
		*a = *updated
	}
	if len(accounts) > 0 {
		return &accounts[0], nil
	}
	account, err := f.env.Cloud.Create(ctx, want)
	return &account, err
}

// TestStoredIDs: the id that the cloud chooses differs from run to run, and a
// controller may store it.
//
// Proves X1.
func TestStoredIDs(t *testing.T) {
	t.Parallel()
	f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		account, err := f.account(ctx, a, cloud.Resource{Name: string(a.UID)})
		if err != nil || account == nil {
			return err
		}
		return f.annotate(ctx, a, "account", account.ID)
	}}
	s := f.scenario()
	s.Converged = func(s *controllertest.State) error {
		switch a, accounts := s.Get("configmaps", "a"), s.Cloud(); {
		case a == nil && len(accounts) > 0:
			return errors.New("an account is left")
		case a != nil && (len(accounts) != 1 || a.GetAnnotations()["account"] != accounts[0].ID || a.GetDeletionTimestamp() != nil):
			return fmt.Errorf("a has the account %q of %v", a.GetAnnotations()["account"], accounts)
		}
		return nil
	}
	o := quick(t)
	o.Faults = []controllertest.Kind{controllertest.UserRecreate}
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid < 3 {
		t.Errorf("%d of %d plans are valid", report.Valid, report.Plans)
	}
}

// TestTokens: a resource of the cloud whose name and tag are hashes of a uid, as those of package
// external, is the same in each run, and the calls with it get faults.
func TestTokens(t *testing.T) {
	t.Parallel()
	f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		token := external.Token(a, accountFinalizer)
		_, err := f.account(ctx, a, cloud.Resource{Name: token, Tags: map[string]string{"token": token}})
		return err
	}}
	s := f.scenario()
	s.Converged = func(s *controllertest.State) error {
		if a, accounts := s.Get("configmaps", "a"), s.Cloud(); (a != nil) != (len(accounts) == 1) {
			return fmt.Errorf("a is %v, the accounts are %v", a, accounts)
		}
		return nil
	}
	o := quick(t)
	o.Faults = []controllertest.Kind{controllertest.CrashBefore, controllertest.LostResponse}
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	calls := slices.DeleteFunc(slices.Clone(report.Operations), func(op string) bool { return !strings.HasPrefix(op, "external ") })
	if want := []string{"external list [hash]#1", "external create [hash]#1"}; !slices.Equal(calls[:min(2, len(calls))], want) || report.Valid < 6 {
		t.Errorf("%d valid plans; the calls are %q, want to begin with %q", report.Valid, calls, want)
	}
}

// copiedToB requires the ConfigMap b exactly as long as a.
func copiedToB(s *controllertest.State) error {
	if (s.Get("configmaps", "a") == nil) != (s.Get("configmaps", "b") == nil) {
		return errors.New("b is missing, or left")
	}
	return nil
}

// TestSlowServer: a request of the script that times out on its way, as on a machine that is
// busy, is no finding. The plan runs again.
//
// Proves X1.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	f := follower{reconcile: copyAndNote}
	s := f.scenario()
	s.Converged = copiedToB // a slow machine is at rest before the controller has begun
	do := s.Script[0].Do
	var calls atomic.Int64
	s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		if n := calls.Add(1); n > 4 && n%3 == 0 { // the first runs have no faults
			return &url.Error{Op: "Post", URL: cfg.Host, Err: &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}}
		}
		return do(ctx, cfg, env)
	}
	o := quick(t)
	o.Faults = []controllertest.Kind{controllertest.Conflict, controllertest.DropRequest}
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid < 2 || calls.Load() < 6 {
		t.Errorf("%d of %d plans are valid after %d runs", report.Valid, report.Plans, calls.Load())
	}
}

// TestLateWatches: the watches begin with the writes of the first run, so what an invariant saw
// in that run alone is no finding.
//
// Proves X1.
func TestLateWatches(t *testing.T) {
	t.Parallel()
	f := follower{reconcile: copyAndNote}
	s := f.scenario()
	var seen atomic.Bool
	s.Invariants = []controllertest.Invariant{{Name: "b follows a", Check: func(*controllertest.State) error {
		if seen.Swap(true) {
			return nil
		}
		return errors.New("the watch of b is late")
	}}}
	o := quick(t)
	o.Faults = []controllertest.Kind{controllertest.Conflict}
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if !seen.Load() || report.Valid < 1 {
		t.Errorf("%d of %d plans are valid, and the invariant was checked: %v", report.Valid, report.Plans, seen.Load())
	}
}

// TestRecreatedAsWritten: the plan's user creates again what the script has written,
// not what the API server and controllers have put into the object.
//
// Proves X1.
func TestRecreatedAsWritten(t *testing.T) {
	t.Parallel()
	job := controllertest.Step{Name: "create work", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "work"}} // the server puts its uid into a selector
		job.Spec.Completions, job.Spec.Parallelism = new(int32(2)), new(int32(1))
		job.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		_, err = kube.BatchV1().Jobs(env.Namespace).Create(ctx, job, metav1.CreateOptions{})
		return err
	}}
	scale := controllertest.Step{Name: "scale work", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		job, err := kube.BatchV1().Jobs(env.Namespace).Get(ctx, "work", metav1.GetOptions{})
		if err != nil {
			return err
		}
		job.Spec.Parallelism = new(int32(2))
		_, err = kube.BatchV1().Jobs(env.Namespace).Update(ctx, job, metav1.UpdateOptions{})
		return ignoreConflict(err)
	}}
	var mu sync.Mutex
	carried, scaled := 0, 0
	f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		if uid := a.Annotations["uid"]; uid != "" && uid != string(a.UID) {
			mu.Lock()
			carried++
			mu.Unlock()
		}
		return f.annotate(ctx, a, "uid", string(a.UID))
	}}
	s := f.scenario()
	s.Script = []controllertest.Step{job, scale, {Name: "create a", Do: createsA}}
	s.Converged = func(s *controllertest.State) error {
		a, work := s.Get("configmaps", "a"), s.Get("jobs.batch", "work")
		if a != nil && work != nil {
			if spec, _ := work.Object["spec"].(map[string]any); spec["parallelism"] == int64(2) {
				mu.Lock()
				scaled++
				mu.Unlock()
			} else {
				return errors.New("the job is not what the user wrote")
			}
		}
		return nil
	}
	o := quick(t)
	o.Faults = []controllertest.Kind{controllertest.UserRecreate}
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid < 2 || carried > 0 || scaled < report.Valid {
		t.Errorf("%d plans are valid, %d objects were created with the controller's annotation, %d jobs were scaled", report.Valid, carried, scaled)
	}
}

// TestBackgroundDeletion: the user deletes an object with its dependents, although the
// default for its kind is to keep them.
//
// Proves X1.
func TestBackgroundDeletion(t *testing.T) {
	t.Parallel()
	f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		work, err := f.kube.CoreV1().ReplicationControllers(f.namespace).Get(ctx, "work", metav1.GetOptions{})
		if err != nil {
			return err
		}
		part := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "part", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ReplicationController", Name: "work", UID: work.UID}}}}
		_, err = f.kube.CoreV1().ConfigMaps(f.namespace).Create(ctx, part, metav1.CreateOptions{})
		return ignoreExists(err)
	}}
	s := f.scenario()
	s.Script = append([]controllertest.Step{{Name: "create work", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		work := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "work"}}
		work.Spec.Replicas, work.Spec.Selector = new(int32(0)), map[string]string{"app": "work"}
		work.Spec.Template = &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: work.Spec.Selector}}
		work.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		_, err = kube.CoreV1().ReplicationControllers(env.Namespace).Create(ctx, work, metav1.CreateOptions{})
		return err
	}}}, s.Script...)
	s.Converged = func(s *controllertest.State) error {
		if a, part := s.Get("configmaps", "a"), s.Get("configmaps", "part"); (a == nil) != (part == nil) {
			return fmt.Errorf("a is there: %t, part is there: %t", a != nil, part != nil)
		}
		return nil
	}
	o := quick(t)
	o.Faults = []controllertest.Kind{controllertest.DropRequest}
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid == 0 {
		t.Error("no plan was valid")
	}
}

// roleOf makes the ClusterRole of a name for a, and removes it with a, unless it leaks.
func roleOf(name func(f *following, a *corev1.ConfigMap) metav1.ObjectMeta, leaks bool) *follower {
	const finalizer = "example.com/role"
	return &follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		roles, configMaps := f.kube.RbacV1().ClusterRoles(), f.kube.CoreV1().ConfigMaps(f.namespace)
		meta := name(f, a)
		switch held := slices.Contains(a.Finalizers, finalizer); {
		case a.DeletionTimestamp != nil && held:
			if err := roles.Delete(ctx, meta.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			a.Finalizers = nil
			_, err := configMaps.Update(ctx, a, metav1.UpdateOptions{})
			return err
		case a.DeletionTimestamp == nil && !held && !leaks:
			a.Finalizers = []string{finalizer}
			_, err := configMaps.Update(ctx, a, metav1.UpdateOptions{})
			return err
		}
		_, err := roles.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta}, metav1.CreateOptions{})
		return ignoreExists(err)
	}}
}

// TestClusterScoped: a cluster-scoped object belongs to the run that creates it,
// whatever its name is.
//
// Proves X1.
func TestClusterScoped(t *testing.T) {
	t.Parallel()
	byUID := func(_ *following, a *corev1.ConfigMap) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "of-" + string(a.UID)}
	}
	// The tests run side by side, and this one looks for what it has left.
	byUIDToo := func(_ *following, a *corev1.ConfigMap) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "left-" + string(a.UID)}
	}
	converged := func(s *controllertest.State) error {
		if a, roles := s.Get("configmaps", "a"), s.Objects("clusterroles.rbac.authorization.k8s.io"); (a == nil) != (len(roles) == 0) {
			return fmt.Errorf("a is there: %t, roles: %d", a != nil, len(roles))
		}
		return nil
	}
	tests := []struct {
		name  string
		meta  func(*following, *corev1.ConfigMap) metav1.ObjectMeta
		leaks bool
		want  string // "" means no failure
	}{
		{name: "named by uid", meta: byUID},
		{name: "named by uid and left", meta: byUIDToo, leaks: true, want: "a is there: false, roles: 1"},
		{
			name: "named by a prefix", want: "clusterroles.rbac.authorization.k8s.io/role- has a generated name, so its run is unknown: let metadata.generateName contain the namespace of the run",
			meta:  func(*following, *corev1.ConfigMap) metav1.ObjectMeta { return metav1.ObjectMeta{GenerateName: "role-"} },
			leaks: true,
		},
		{
			name: "one name for all runs", want: "clusterroles.rbac.authorization.k8s.io/controllertest-alarm is written by two runs at once: let its name contain the namespace of the run",
			meta: func(*following, *corev1.ConfigMap) metav1.ObjectMeta {
				return metav1.ObjectMeta{Name: "controllertest-alarm"}
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := roleOf(test.meta, test.leaks).scenario()
			s.Converged = converged
			o := quick(t)
			o.Faults = []controllertest.Kind{controllertest.LostResponse, controllertest.DropRequest, controllertest.CrashAfter, controllertest.UserDelete}
			o.ConvergeTimeout = 5 * time.Second
			o.KeepNamespaces = false
			report, err := controllertest.Run(t.Context(), s, o)
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			for _, f := range report.Failures {
				all.WriteString(f.String())
			}
			if text := all.String(); (text == "") != (test.want == "") || !strings.Contains(text, test.want) {
				t.Errorf("found %q, want %q", text, test.want)
			}
			if test.want == "" && (report.Valid < 8 || !slices.Contains(report.Operations, "create clusterroles.rbac.authorization.k8s.io of-[uid configmaps]#1")) {
				t.Errorf("%d valid plans of the operations %q", report.Valid, report.Operations)
			}
			kube, err := kubernetes.NewForConfig(o.Config)
			if err != nil {
				t.Fatal(err)
			}
			roles, err := kube.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, role := range roles.Items {
				if strings.HasPrefix(role.Name, "left-") && test.name == "named by uid and left" || role.Name == "controllertest-alarm" && test.name == "one name for all runs" {
					t.Errorf("%s is left", role.Name)
				}
			}
		})
	}
}

// TestOverlookedFinalizer: if the API server deletes an object whose finalizer it has stored, no controller is to
// blame. A webhook that takes time makes the API server do it.
//
// Proves X6.
func TestOverlookedFinalizer(t *testing.T) {
	t.Parallel()
	config := testserver.Config(t)
	kube := kubernetes.NewForConfigOrDie(config)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		// The finalizer of a controller is stored while the DELETE waits.
		_, err := kube.CoreV1().ConfigMaps(review.Request.Namespace).Patch(r.Context(), review.Request.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/late"]}}`), metav1.PatchOptions{})
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: err == nil}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "overlooked-"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "overlooked.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"overlooked": "yes"}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: new(hook.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Delete},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	configuration, err := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(context.Background(), configuration.Name, metav1.DeleteOptions{})
	})
	s := (&copier{}).scenario()
	s.Script = []controllertest.Step{{Name: "create a", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(env.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"overlooked": "yes"}}}, metav1.CreateOptions{})
		return err
	}}}
	// What is left behind is no finding either.
	s.Invariants = []controllertest.Invariant{{Name: "a stays", Check: func(s *controllertest.State) error {
		if s.Get("configmaps", "a") == nil && s.Get("configmaps", "a-copy") != nil {
			return errors.New("a is gone")
		}
		return nil
	}}}
	_, err = controllertest.Run(t.Context(), s, quick(t, dropped))
	if err == nil || !strings.Contains(err.Error(), "/a although it had a finalizer: a DELETE overlooks one that is added while it is in progress (kubernetes#77988, docs/finalizers.md)") {
		t.Errorf("the error is %v", err)
	}
}
