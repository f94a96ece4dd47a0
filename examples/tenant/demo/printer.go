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
	"github.com/controllerkit/controllerkit/examples/tenant/internal/observer"
)

// printer prints steps, checks and events with the time since the start. Several
// goroutines use it.
type printer struct {
	begin time.Time

	mu     sync.Mutex // guards the fields below
	w      io.Writer
	steps  int
	checks []string
	events map[string]int // by kind
}

func newPrinter(w io.Writer) *printer {
	return &printer{begin: time.Now(), w: w, events: map[string]int{}}
}

func (p *printer) printLocked(mark, format string, args ...any) {
	fmt.Fprintf(p.w, "%6.2fs  %s %s\n", time.Since(p.begin).Seconds(), mark, fmt.Sprintf(format, args...))
}

func (p *printer) step(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps++
	fmt.Fprintln(p.w)
	p.printLocked("==", "%d. %s", p.steps, fmt.Sprintf(format, args...))
}

// check prints a statement that the demo has verified.
func (p *printer) check(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	p.checks = append(p.checks, text)
	p.printLocked("ok", "%s", text)
}

func (p *printer) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.printLocked("FAILED", "%v", err)
}

func (p *printer) quote(what, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "--- %s:\n%s\n---\n", what, text)
}

func (p *printer) summary() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "\nSummary: %d steps and %d checks passed in %.0fs\n", p.steps, len(p.checks), time.Since(p.begin).Seconds())
	for _, kind := range []string{"Tenant", "Namespace", "ResourceQuota", "RoleBinding", "NetworkPolicy", "Lease"} {
		fmt.Fprintf(p.w, "  %-14s %3d events\n", kind, p.events[kind])
	}
}

// event prints an event of the observer if it is relevant to the demo.
func (p *printer) event(e observer.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Initial {
		return
	}
	p.events[e.Kind]++
	name := e.Object.GetName()
	if ns := e.Object.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	verb := map[string]string{"Added": "is created", "Modified": "changes", "Deleted": "is deleted"}[e.Type]
	what := ""
	switch obj := e.Object.(type) {
	case *v1alpha1.Tenant:
		what = p.tenant(e, obj)
		if what == "" && e.Type == "Modified" {
			return
		}
	case *coordinationv1.Lease:
		// Renewals are not printed.
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
			old, _ := e.Previous.(*corev1.Namespace)
			if obj.Status.Phase != corev1.NamespaceTerminating || old.Status.Phase == corev1.NamespaceTerminating {
				return
			}
			verb = "is terminating"
		}
	case *corev1.ResourceQuota:
		old, _ := e.Previous.(*corev1.ResourceQuota)
		if e.Type == "Modified" && old.Generation == obj.Generation && old.Spec.Hard.Pods().Cmp(*obj.Spec.Hard.Pods()) == 0 {
			return // only the status changed
		}
		what = fmt.Sprintf(", %s Pods", obj.Spec.Hard.Pods())
	}
	p.printLocked(" .", "%s %s %s%s", e.Kind, name, verb, what)
}

// tenant describes the changes of a Tenant.
func (p *printer) tenant(e observer.Event, obj *v1alpha1.Tenant) string {
	if e.Type == "Deleted" {
		return ""
	}
	var before []metav1.Condition
	if old, ok := e.Previous.(*v1alpha1.Tenant); ok {
		before = old.Status.Conditions
		if old.DeletionTimestamp == nil && obj.DeletionTimestamp != nil {
			return ": deletion requested"
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
