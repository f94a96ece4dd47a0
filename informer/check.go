package informer

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Metrics observes the informers of a Set by their names. Implementations must be safe for
// concurrent use and must not block.
type Metrics interface {
	// InformerListed is called at the end of a list request that took d, also if it failed.
	// Lists in pages have several requests. An initial list that the API server streams is
	// part of a watch.
	InformerListed(name string, d time.Duration)

	// InformerWatched is called at the end of a watch request that took d, also if it failed.
	InformerWatched(name string, d time.Duration)

	// InformerLast is called once for each informer, when Run begins. last returns the time of
	// Set.LastEvents, and may be called at any time. When Run ends, it returns the zero Time.
	InformerLast(name string, last func() time.Time)

	// InformerMutated is called with the number of mutations that Set.Mutated got of the
	// informer in a comparison, also if it is 0, and with 0 when Run starts.
	InformerMutated(name string, mutations int)

	// InformerMalformed is called once for each informer, when Run begins. malformed returns the
	// number of objects that do not fit the informer's Go type, as far as they are known, and
	// may be called at any time. When Run ends, it returns 0. An informer of package crd goes on without them. Any other one
	// gets nothing more because of the first, which counts from the third failed list.
	InformerMalformed(name string, malformed func() int)
}

// observe returns the hooks for the informer's requests.
func (s *Set) observe(m *member) alive.Metrics {
	hooks := alive.Metrics{Refused: func(err error) { m.heard(err, false) }}
	if kube.IsNil(s.Metrics) {
		return hooks
	}
	hooks.Ended = func(watch bool, d time.Duration) {
		if watch {
			s.Metrics.InformerWatched(m.name, d)
		} else {
			s.Metrics.InformerListed(m.name, d)
		}
	}
	return hooks
}

// Check returns an error if an informer is stalled: it is running, and for StallTimeout has
// neither sent a request nor received data, so that its cache is stale without any other sign.
// The error names the informers and the times since then. Each part of an informer, such as a
// namespace of a scope.Informer, is checked and named by itself. Otherwise, and before and after
// Run, Check returns nil. It fits a liveness probe, such as shutdown's AddLive: a restart cures a
// stall.
//
// Check also returns an error if the last three lists of an informer were received and could not
// be decoded: one object that does not fit the Go type hides all events of the resource. The
// error names the object if the API server streams lists, or if the informer is crd's ListWatch.
// A restart does not cure that. If it happens to a part, the others go on, and Check returns nil: the
// metrics show it, and Ready if the part had received data. Informers of package crd go on without
// such an object.
//
// An API server that is down is no stall, because client-go repeats its requests, and neither is
// an informer that waits for Served. Check needs
// the transport of [EndSilentWatches] in the informer's client: without it, the informer counts
// as alive.
func (s *Set) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.misused == nil || s.stopped {
		return nil
	}
	limit := cmp.Or(s.StallTimeout, 10*time.Minute)
	var errs []error
	for _, m := range s.members {
		for _, p := range m.alive.Parts() {
			if idle, observed := p.Idle(); observed && idle >= limit {
				errs = append(errs, fmt.Errorf("informer: %s is stalled: it has sent no request and received no data for %v", m.of(p), idle.Round(time.Second)))
			}
		}
		if err := m.blind(false); err != nil {
			errs = append(errs, fmt.Errorf("informer: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Relist makes the informer with the name, and each of its parts, list again, as client-go does
// if its resource version is too old. The cache then equals the API server's state, and handlers
// get an event for each difference. It cures a cache that has lost events, or that is ahead of an
// etcd that was restored from a backup, without a restart of the process:
//
//	audit.Report = func(d informer.Difference) {
//		logger.Error(errors.New(d.String()), "Listing again", "err", set.Relist(d.Name))
//	}
//
// Relist returns before the list, which begins within some seconds. It returns an error if the
// Set has no running informer with the name, or if the informer has sent no request through the
// transport of [EndSilentWatches]. A part that has sent none yet lists anyway.
func (s *Set) Relist(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.misused == nil || s.stopped {
		return fmt.Errorf("informer: Relist(%q): the Set is not running", name)
	}
	for _, m := range s.members {
		if m.name != name {
			continue
		}
		parts := m.alive.Parts()
		relisted := false
		for _, p := range parts {
			if _, observed := p.Idle(); observed { // the others have not listed yet
				p.Relist()
				relisted = true
			}
		}
		if len(parts) == 0 || relisted {
			return nil
		}
		part := ""
		if p := parts[0]; p.IsPart() {
			part = kube.Printable(p.Name(), maxName) + ": "
		}
		return fmt.Errorf("informer: Relist(%q): %sthe informer's client has no transport that can end its watch: wrap its config with EndSilentWatches", name, part)
	}
	return fmt.Errorf("informer: Relist(%q): the Set has no informer with this name: use the name that was given to Add", name)
}

// LastEvents returns for each informer, by its name, when it last received data from the API
// server that it could decode: an event, a bookmark or a list. The time is zero before the first event, or if its
// client does not have the transport of [EndSilentWatches]. If a watch is open and the API
// server sends bookmarks for it, which is usual after the initial list, the time is about a
// minute old at most. If the API server sends no bookmarks, the time stays at the last
// event.
//
// Of an informer with parts, the time is the oldest one of its parts, where a part without data
// counts from its start. Without a part it is zero.
func (s *Set) LastEvents() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := make(map[string]time.Time, len(s.members))
	for _, m := range s.members {
		last[m.name] = time.Time{}
		if m.alive != nil {
			last[m.name] = m.alive.Last()
		}
	}
	return last
}
