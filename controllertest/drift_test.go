package controllertest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
