package informer

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// minUndecodable is the number of lists in a row that could not be decoded, after which the
// informer is blind. A proxy can cut one off.
const minUndecodable = 3

// notDecodedLocked counts a list that was received and could not be decoded.
func (m *member) notDecodedLocked(ctx context.Context, err error) {
	failures := alive.From(ctx).NotDecoded()
	if failures == 0 {
		return
	}
	m.undecoded = err
	if failures == minUndecodable {
		klog.FromContext(ctx).Error(m.undecodableLocked(minUndecodable), "An informer gets no events")
	}
}

// blind returns an error if the informer gets no events because of an object that does not fit
// its Go type.
func (m *member) blind() error { return m.undecodable(minUndecodable) }

// undecodable returns an error if at least so many lists in a row could not be decoded.
func (m *member) undecodable(least int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.undecodableLocked(least)
}

func (m *member) undecodableLocked(least int) error {
	if m.undecoded == nil {
		return nil
	}
	for _, p := range m.alive.Parts() {
		failures, object := p.Undecodable()
		if failures < least {
			continue
		}
		if object != "" {
			object = fmt.Sprintf(" because of %s", kube.Printable(object, 2*maxName+1))
		}
		return fmt.Errorf("%s gets no events: its last %d lists cannot be decoded%s: correct or delete the object, and let the schema of its resource reject such values; an informer of package crd goes on without it: %w", m.of(p), failures, object, kube.PrintableError(m.undecoded, maxText))
	}
	return nil
}

// malformed returns the number of known objects that do not fit the Go type.
func (m *member) malformed() int {
	n := len(malformed.Keys(m.informer.GetStore()))
	if n == 0 && m.blind() != nil {
		return 1
	}
	return n
}
