package informer

import (
	"errors"
	"fmt"
	"time"

	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// staleAfter is the time of refusals after which Ready reports a part. A role that is replaced is
// absent for less.
const staleAfter = time.Minute

// stale returns an error for each part of a composed informer whose cache was filled, and whose
// lists and watches the API server has refused for staleAfter.
func (m *member) stale() error {
	if m.alive == nil {
		return nil
	}
	var errs []error
	for _, p := range m.alive.Parts() {
		since, err := p.Failing()
		if !p.IsPart() || !isRefusal(err) || p.LastReceived().IsZero() || time.Since(since) < staleAfter {
			continue
		}
		errs = append(errs, fmt.Errorf("%w: %s: its cache was filled and has been stale for %v: %s: %w",
			ErrNotSynced, m.of(p), time.Since(since).Round(time.Second), m.reason(err), kube.PrintableError(err, maxText)))
	}
	return errors.Join(errs...)
}

// of returns the name of the informer for an error, with that of the part, if p is one.
func (m *member) of(p *alive.Informer) string {
	if p.IsPart() {
		return fmt.Sprintf("%q: %s", m.name, kube.Printable(p.Name(), maxName))
	}
	return fmt.Sprintf("%q", m.name)
}
