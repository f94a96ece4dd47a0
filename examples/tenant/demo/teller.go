package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/internal/lab"
)

// teller prints what happens, with the time since the start. Events come from
// several goroutines.
type teller struct {
	begin time.Time

	mu     sync.Mutex // guards what follows
	w      io.Writer
	steps  int
	checks []string
	events map[string]int // by kind
}

func newTeller(w io.Writer) *teller {
	return &teller{begin: time.Now(), w: w, events: map[string]int{}}
}

func (t *teller) printLocked(mark, format string, args ...any) {
	fmt.Fprintf(t.w, "%6.2fs  %s %s\n", time.Since(t.begin).Seconds(), mark, fmt.Sprintf(format, args...))
}

func (t *teller) step(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps++
	fmt.Fprintln(t.w)
	t.printLocked("==", "%d. %s", t.steps, fmt.Sprintf(format, args...))
}

// check says what has just been seen to be true.
func (t *teller) check(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	t.checks = append(t.checks, text)
	t.printLocked("ok", "%s", text)
}

func (t *teller) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.printLocked("FAILED", "%v", err)
}

func (t *teller) quote(what, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.w, "--- %s:\n%s\n---\n", what, text)
}

func (t *teller) summary() {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.w, "\nSummary: %d steps, %d checks, all true, in %.0fs\n", t.steps, len(t.checks), time.Since(t.begin).Seconds())
	for _, kind := range []string{"Tenant", "Namespace", "ResourceQuota", "RoleBinding", "NetworkPolicy", "Lease"} {
		fmt.Fprintf(t.w, "  %-14s %3d events seen\n", kind, t.events[kind])
	}
}

// event prints what the observer saw, as far as it is of this story.
func (t *teller) event(e lab.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Initial {
		return
	}
	t.events[e.Kind]++
	name := e.Object.GetName()
	if ns := e.Object.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	verb := map[string]string{"Added": "is created", "Modified": "changes", "Deleted": "is deleted"}[e.Type]
	what := ""
	switch obj := e.Object.(type) {
	case *v1alpha1.Tenant:
		what = t.tenant(e, obj)
		if what == "" && e.Type == "Modified" {
			return
		}
	case *coordinationv1.Lease:
		// Renewals are no news.
		old, _ := e.Previous.(*coordinationv1.Lease)
		holder := holderOf(obj)
		if e.Type == "Modified" && holderOf(old) == holder {
			return
		}
		verb = "is held by " + holder
		if holder == "" {
			verb = "is released"
		}
	case *corev1.Namespace:
		if e.Type == "Modified" {
			if obj.Status.Phase != corev1.NamespaceTerminating {
				return
			}
			verb = "is terminating"
		}
	case *corev1.ResourceQuota:
		old, _ := e.Previous.(*corev1.ResourceQuota)
		if e.Type == "Modified" && old.Generation == obj.Generation && old.Spec.Hard.Pods().Cmp(*obj.Spec.Hard.Pods()) == 0 {
			return // its status
		}
		what = fmt.Sprintf(", %s Pods", obj.Spec.Hard.Pods())
	}
	t.printLocked(" .", "%s %s %s%s", e.Kind, name, verb, what)
}

// tenant says how the conditions moved.
func (t *teller) tenant(e lab.Event, obj *v1alpha1.Tenant) string {
	if e.Type == "Deleted" {
		return ""
	}
	var before []metav1.Condition
	if old, ok := e.Previous.(*v1alpha1.Tenant); ok {
		before = old.Status.Conditions
		if old.DeletionTimestamp == nil && obj.DeletionTimestamp != nil {
			return ": it is being deleted"
		}
		if old.Generation != obj.Generation {
			return fmt.Sprintf(": generation %d", obj.Generation)
		}
	}
	var moved []string
	for _, c := range obj.Status.Conditions {
		same := false
		for _, b := range before {
			same = same || b.Type == c.Type && b.Status == c.Status && b.Reason == c.Reason && b.ObservedGeneration == c.ObservedGeneration
		}
		if !same {
			text := fmt.Sprintf("%s=%s (%s)", c.Type, c.Status, c.Reason)
			if c.Status != metav1.ConditionTrue {
				text += " " + c.Message
			}
			moved = append(moved, text)
		}
	}
	if len(moved) == 0 {
		return ""
	}
	return ": " + strings.Join(moved, ", ")
}

func holderOf(lease *coordinationv1.Lease) string {
	if lease == nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
