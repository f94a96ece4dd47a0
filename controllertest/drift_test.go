package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// TestDrift holds what a controller must do with an object that another user changes: restore
// it, or leave it to a person, but not wait for its next start.
//
// Proves X1.
func TestDrift(t *testing.T) {
	t.Parallel()
	// creates makes or corrects b.
	creates := func(ctx context.Context, f *following, owners ...metav1.OwnerReference) error {
		configMaps := f.kube.CoreV1().ConfigMaps(f.namespace)
		b, err := configMaps.Get(ctx, "b", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err := configMaps.Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "b", OwnerReferences: owners},
				Data:       map[string]string{"k": "v"},
			}, metav1.CreateOptions{})
			return err
		}
		if err != nil || b.Data["k"] == "v" {
			return err
		}
		b.Data = map[string]string{"k": "v"}
		_, err = configMaps.Update(ctx, b, metav1.UpdateOptions{})
		return err
	}
	makes := func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		return creates(ctx, f, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: a.UID})
	}
	tests := []struct {
		name      string
		reconcile func(ctx context.Context, f *following, a *corev1.ConfigMap) error
		poll      bool // instead of a watch on b
		missed    bool // is restored only by a restart
		skipped   bool // is not restored
		stays     bool // has no owner, so no run without faults deletes it
	}{
		{name: "is restored", reconcile: makes, poll: true},
		{name: "is restored and has no owner", poll: true, stays: true, reconcile: func(ctx context.Context, f *following, _ *corev1.ConfigMap) error {
			return creates(ctx, f)
		}},
		{name: "is missed", reconcile: makes, missed: true},
		{name: "is left to a person", skipped: true, reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
			if a.Annotations["made"] != "" {
				return nil
			}
			if err := makes(ctx, f, a); err != nil {
				return err
			}
			return f.annotate(ctx, a, "made", "yes")
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
				calls.Add(1)
				err := test.reconcile(ctx, f, a)
				if err == nil && test.poll {
					err = errors.New("to be called again")
				}
				return err
			}, retry: 100 * time.Millisecond}
			s := f.scenario()
			s.Converged = copiedToB
			if test.stays {
				s.Converged = func(s *controllertest.State) error {
					if s.Get("configmaps", "a") == nil {
						return nil
					}
					return copiedToB(s)
				}
			}
			plans := []string{"drift-delete(configmaps/b)@rest#1", "drift-edit(configmaps/b)@rest#1"}
			o := quick(t)
			o.ConvergeTimeout = 5 * time.Second
			o.Faults = []controllertest.Kind{controllertest.DriftDelete, controllertest.DriftEdit}
			if test.stays { // it is there at the end, and nothing restores it then
				o.Plans = plans
			}
			report := run(t, s, o)
			var failed []string
			for _, f := range report.Failures {
				failed = append(failed, f.Plans...)
				if text := f.Findings[0].Text; !strings.Contains(text, "of configmaps: the controller restores it after a restart, but not within 5s of the change: let it watch configmaps") {
					t.Errorf("%s: %s", f.Plan, text)
				}
			}
			slices.Sort(failed)
			want := plans
			if !test.missed {
				want = nil
			}
			if !slices.Equal(failed, want) || report.Valid != len(plans) || report.Plans != len(plans) {
				t.Errorf("%q failed, want %q; %d of %d plans are valid", failed, want, report.Valid, report.Plans)
			}
			skipped := strings.Contains(strings.Join(report.Skipped, "\n"), "drift-delete of configmaps, which the controller does not restore")
			if skipped != test.skipped {
				t.Errorf("skipped: %q, want the drift: %t", report.Skipped, test.skipped)
			}
		})
	}
}

// TestDriftBeforeWrite holds that another user changes an object of the controller before a write
// of it, and not an object that others have created.
//
// Proves X2.
func TestDriftBeforeWrite(t *testing.T) {
	t.Parallel()
	f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		if err := copyAndNote(ctx, f, a); err != nil {
			return err
		}
		configMaps := f.kube.CoreV1().ConfigMaps(f.namespace)
		b, err := configMaps.Get(ctx, "b", metav1.GetOptions{})
		if err != nil || b.Data["k"] == "v" {
			return ignoreExists(err)
		}
		b.Data = map[string]string{"k": "v"}
		_, err = configMaps.Update(ctx, b, metav1.UpdateOptions{})
		return err
	}}
	s := f.scenario()
	s.Converged = copiedToB
	o := quick(t, "drift-delete(configmaps/b)@update configmaps b data.k#1", "drift-delete(configmaps/a)@rest#1", "drift-delete(configmaps/b)@rest#7")
	o.ConvergeTimeout = 5 * time.Second
	report := run(t, s, o)
	want := []string{"drift-delete(configmaps/a)@rest#1", "drift-delete(configmaps/b)@rest#7"}
	if !slices.Equal(report.Invalid, want) || report.Valid != 1 {
		t.Errorf("invalid: %q, want %q; %d valid", report.Invalid, want, report.Valid)
	}
}

// TestDriftUnknown holds that a controller that leaves a drift to a person neither fails nor counts
// as one that does not restore it, if the rest after the restart cannot be judged.
//
// Proves X2.
func TestDriftUnknown(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprintf("stops %t", stops), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var starts, refused sync.Map // by namespace
			f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
				if n, _ := starts.Load(f.namespace); n == 2 {
					refused.Store(f.namespace, true)
					if stops {
						cancel()
					}
				}
				if a.Annotations["made"] != "" {
					return nil
				}
				b := &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: "b", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: a.UID}}},
					Data:       map[string]string{"k": "v"},
				}
				if _, err := f.kube.CoreV1().ConfigMaps(f.namespace).Create(ctx, b, metav1.CreateOptions{}); ignoreExists(err) != nil {
					return err
				}
				return f.annotate(ctx, a, "made", "yes")
			}}
			s := f.scenario()
			start := s.Start
			s.Start = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				n, _ := starts.LoadOrStore(env.Namespace, 0)
				starts.Store(env.Namespace, n.(int)+1)
				return start(ctx, cfg, env)
			}
			s.Converged = copiedToB
			o := quick(t, "drift-edit(configmaps/b)@rest#1")
			o.ConvergeTimeout = 3 * time.Second
			o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(req *http.Request) (*http.Response, error) {
					parts := strings.Split(req.URL.Path, "/") // /api/v1/namespaces/NAMESPACE/configmaps
					if len(parts) == 6 && req.Method == http.MethodGet && !req.URL.Query().Has("watch") {
						if _, is := refused.Load(parts[4]); is {
							return nil, errors.New("refused by the test")
						}
					}
					return next.RoundTrip(req)
				})
			})
			report, err := controllertest.Run(ctx, s, o)
			if report == nil || (err != nil) != stops {
				t.Fatalf("the error is %v, the report %v", err, report)
			}
			if text := strings.Join(report.Skipped, "\n"); strings.Contains(text, "drift-edit") {
				t.Errorf("skipped: %s", text)
			}
			if len(report.Failures) > 0 || !stops && len(report.Unjudged) != 1 {
				t.Errorf("failures %v, not judged %q", report.Failures, report.Unjudged)
			}
		})
	}
}
