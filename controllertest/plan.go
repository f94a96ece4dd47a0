package controllertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// A plan is what goes wrong in a run, one after the other. Its text is
//
//	kind@operation
//	kind(about)@operation
//	time-travel(resource<operation)@operation
//	... + ...
//
// where about is the resource whose watches are meant, or the user's object, and
// an operation is what it does and how many such there were since the fault before.
type plan []injection

// An injection is one fault of a plan.
type injection struct {
	kind  Kind
	about string // a resource, or a user's object as resource/name
	from  string // the operation before which the old list was taken; "start" is the beginning of the run
	at    string // the operation at which it happens

	// If after is not 0 the fault is still open: a kind that fits is chosen at that
	// operation, counted from the fault before.
	after int
	rng   *rand.Rand
}

func (p plan) String() string {
	parts := make([]string, len(p))
	for i, j := range p {
		parts[i] = j.String()
	}
	return strings.Join(parts, " + ")
}

func (j injection) String() string {
	s := string(j.kind)
	if j.about != "" {
		s += "(" + j.about
		if j.from != "" {
			s += "<" + j.from
		}
		s += ")"
	}
	return s + "@" + j.at
}

func parsePlan(text string) (plan, error) {
	var p plan
	for part := range strings.SplitSeq(text, " + ") {
		what, at, ok := strings.Cut(strings.TrimSpace(part), "@")
		if !ok || !strings.Contains(at, "#") {
			return nil, fmt.Errorf("plan %q: %q has no operation: write kind@operation#occurrence, as reports do", text, part)
		}
		if n, err := strconv.Atoi(at[strings.LastIndexByte(at, '#')+1:]); err != nil || n < 1 {
			return nil, fmt.Errorf("plan %q: %q does not end in an occurrence: write #1 for the first such operation; it counts from 1", text, at)
		}
		j := injection{kind: Kind(what), at: at}
		if kind, about, ok := strings.Cut(what, "("); ok {
			j.kind = Kind(kind)
			j.about, j.from, _ = strings.Cut(strings.TrimSuffix(about, ")"), "<")
		}
		if !slices.Contains(AllFaults(), j.kind) {
			return nil, fmt.Errorf("plan %q: there is no kind %q; there are %v", text, j.kind, AllFaults())
		}
		switch scope := j.kind.scope(); {
		case scope != anyOperation && j.about == "":
			return nil, fmt.Errorf("plan %q: %s needs to say of what: %s(...)@operation", text, j.kind, j.kind)
		case scope == anyOperation && j.about != "", j.kind != TimeTravel && j.from != "":
			return nil, fmt.Errorf("plan %q: %s takes nothing in parentheses like %q", text, j.kind, what)
		case j.kind == TimeTravel && j.from == "":
			return nil, fmt.Errorf("plan %q: %s needs to say from when: %s(resource<operation)@operation", text, j.kind, j.kind)
		}
		p = append(p, j)
	}
	return p, nil
}

func (p plan) has(kind Kind) bool {
	return slices.ContainsFunc(p, func(j injection) bool { return j.kind == kind })
}

// scope is what a kind of fault is about, besides an operation.
type scope int

const (
	anyOperation scope = iota
	watchedResource
	userObject
)

func (k Kind) scope() scope {
	switch k {
	case Hold, HoldRelist, Gone, GoneAtStart, NoBookmark, Stall, TimeTravel:
		return watchedResource
	case UserDelete, UserEdit, UserRecreate:
		return userObject
	}
	return anyOperation
}

// fits reports whether there is any sense in a fault of the kind at an operation.
func (k Kind) fits(op operation) bool {
	switch k {
	case Conflict, Forbidden, Invalid, TooManyRequests, Unavailable, CommitThen503, Slow, ResetConns:
		return op.write && !op.external
	case InternalError, Timeout, Truncated:
		return !op.external
	case DropRequest:
		return true
	case SlowRenewal:
		return false // enumerated where there are renewals
	}
	return op.write // external calls count as writes
}
