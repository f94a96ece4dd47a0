package informer

import (
	"time"

	"github.com/controllerkit/controllerkit/internal/alive"
)

// Run waits for at most so many periods of Timeout.
const (
	maxPeriods = 30 // while first lists bring data
	maxOwn     = 10 // while the process decodes a list or calls handlers
)

// proceeding returns the members that are not synced, or none if one of them does not proceed. Run
// has waited for them for a number of periods of timeout.
func proceeding(members []*member, timeout time.Duration, periods int) (late []string) {
	for _, m := range members {
		if missing := m.missing(); len(missing) > 0 {
			if !m.proceeds(missing[0].Done() != m.checkers[0].Done(), timeout/2, periods) {
				return nil
			}
			late = append(late, m.name)
		}
	}
	return late
}

// proceeds reports whether a member that is not synced is likely to be. handlers reports that only its
// handlers are late. A failure counts for the time recent, and until other data comes.
func (m *member) proceeds(handlers bool, recent time.Duration, periods int) bool {
	if !handlers {
		moves, decodes := m.moves(recent)
		switch {
		case m.fails(recent), !moves && !decodes:
			return false
		case moves:
			m.endless = periods >= maxPeriods
			return !m.endless
		}
	}
	m.own++
	return m.own < maxOwn
}

// moves reports whether data of the first list has come recently, and whether such a list is being
// decoded. While a part waits for its list, parts that have theirs do not count: their events are no
// progress.
func (m *member) moves(recent time.Duration) (moves, decodes bool) {
	listing := false
	for _, p := range m.alive.Parts() {
		if listing = p.LastReceived().IsZero(); listing {
			break
		}
	}
	for _, p := range m.alive.Parts() {
		if listing && !p.LastReceived().IsZero() {
			continue
		}
		at, decoding := p.LastRead()
		moves = moves || !at.IsZero() && time.Since(at) < recent
		decodes = decodes || decoding
	}
	return moves, decodes
}

// fails reports whether the last failure counts. A missing end of the initial events is none once
// the watch brings data again.
func (m *member) fails(recent time.Duration) bool {
	m.mu.Lock()
	last := m.last
	m.mu.Unlock()
	if last.err == nil {
		return false
	}
	if m.undecodable(1) != nil || !last.bookmark && time.Since(last.at) < recent {
		return true
	}
	parts := m.alive.Parts()
	if last.of.IsPart() {
		parts = []*alive.Informer{last.of}
	}
	for _, p := range parts {
		if at, _ := p.LastRead(); at.After(last.at) {
			return false
		}
	}
	return true
}
