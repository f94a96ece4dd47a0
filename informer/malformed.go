package informer

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// minUndecodable is the number of lists in a row that could not be decoded, after which the
// informer is blind. A proxy can cut one off.
const minUndecodable = 3

// notDecoded counts a list that was received and could not be decoded. ctx is that of the
// informer, or of a part of it.
func (m *member) notDecoded(ctx context.Context, err error) {
	p := alive.From(ctx)
	if p.Failed(err) == minUndecodable {
		klog.FromContext(ctx).Error(m.undecodableOf(p, minUndecodable), "An informer gets no events")
	}
}

// blind returns an error if the informer gets no events because of an object that does not fit
// its Go type. If parts is true, it also has an error for each such part whose cache was filled.
func (m *member) blind(parts bool) error {
	var errs []error
	for _, p := range m.alive.Parts() {
		if !p.IsPart() || parts && !p.LastReceived().IsZero() {
			errs = append(errs, m.undecodableOf(p, minUndecodable))
		}
	}
	return errors.Join(errs...)
}

// undecodable returns an error if at least so many lists in a row could not be decoded, also of a
// part.
func (m *member) undecodable(least int) error {
	var errs []error
	for _, p := range m.alive.Parts() {
		errs = append(errs, m.undecodableOf(p, least))
	}
	return errors.Join(errs...)
}

func (m *member) undecodableOf(p *alive.Informer, least int) error {
	failures, object, err := p.Undecodable()
	if failures < least || err == nil {
		return nil
	}
	if object != "" {
		object = fmt.Sprintf(" because of %s", kube.Printable(object, 2*maxName+1))
	}
	return fmt.Errorf("%s gets no events: its last %d lists cannot be decoded%s: correct or delete the object, and let the schema of its resource reject such values; an informer of package crd goes on without it: %w", m.of(p), failures, object, kube.PrintableError(err, maxText))
}

// malformed returns the number of known objects that do not fit the Go type.
func (m *member) malformed() int {
	n := len(malformed.Keys(m.informer.GetStore()))
	if n > 0 {
		return n
	}
	for _, p := range m.alive.Parts() {
		if m.undecodableOf(p, minUndecodable) != nil {
			n++
		}
	}
	return n
}

// of returns the name of the informer for an error, with that of the part, if p is one.
func (m *member) of(p *alive.Informer) string {
	if p.IsPart() {
		return fmt.Sprintf("%q: %s", m.name, kube.Printable(p.Name(), maxName))
	}
	return fmt.Sprintf("%q", m.name)
}
