package controllertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/controllerkit/controllerkit/controllertest/internal/outage"
)

// A plan is the list of faults of a run, in their order. Its text is
//
//	kind@operation
//	kind(about)@operation
//	time-travel(resource<operation)@operation
//	outage(requests form extent)@operation
//	... + ...
//
// where about is a watched resource, an object of the user or an object of the controller, and an
// operation is its effect and its number since the fault before. The rest of the cluster is
// the operation "rest".
type plan []injection

// An injection is one fault of a plan.
type injection struct {
	kind  Kind
	about string // a resource, an object as resource/name, or the text of an outage
	from  string // the operation before which the old list was taken; "start" is the beginning of the run
	at    string // the operation at which it happens

	// If after is not 0, the fault is not chosen yet: a kind that fits is chosen at the
	// operation with this number since the fault before.
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
			return nil, fmt.Errorf("plan %q: %q has no operation: write kind@operation#occurrence, as in a report", text, part)
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
			return nil, fmt.Errorf("plan %q: kind %q does not exist: use one of %v", text, j.kind, AllFaults())
		}
		switch scope := j.kind.scope(); {
		case scope != anyOperation && j.about == "":
			return nil, fmt.Errorf("plan %q: %s has no object or resource: write %s(...)@operation", text, j.kind, j.kind)
		case scope == anyOperation && j.about != "", j.kind != TimeTravel && j.from != "":
			return nil, fmt.Errorf("plan %q: %s takes no parentheses such as in %q: remove them", text, j.kind, what)
		case j.kind == TimeTravel && j.from == "":
			return nil, fmt.Errorf("plan %q: %s has no earlier operation: write %s(resource<operation)@operation", text, j.kind, j.kind)
		}
		if j.kind == Outage {
			if _, err := outage.Parse(j.about); err != nil {
				return nil, fmt.Errorf("plan %q: %w", text, err)
			}
		}
		p = append(p, j)
	}
	return p, nil
}

// signatureOf returns an operation without its number.
func signatureOf(at string) string {
	if n := strings.LastIndexByte(at, '#'); n >= 0 {
		return at[:n]
	}
	return at
}

func (p plan) has(kind Kind) bool {
	return slices.ContainsFunc(p, func(j injection) bool { return j.kind == kind })
}

// A scope is the kind of the target of a fault, in addition to its operation.
type scope int

const (
	anyOperation scope = iota
	watchedResource
	userObject
	madeObject     // by the controller
	failedRequests // the text of an outage
)

func (k Kind) scope() scope {
	switch k {
	case Hold, HoldRelist, Gone, GoneAtStart, NoBookmark, Stall, NextStep, TimeTravel:
		return watchedResource
	case UserDelete, UserEdit, UserRecreate:
		return userObject
	case DriftDelete, DriftEdit:
		return madeObject
	case Outage:
		return failedRequests
	}
	return anyOperation
}

// steps returns the number of steps of the script that begin early because of the fault.
func (k Kind) steps() int {
	switch k {
	case NextStep, StepBefore:
		return 1
	case TwoSteps:
		return 2
	}
	return 0
}

// fits reports whether a fault of the kind can have an effect at an operation.
func (k Kind) fits(op operation) bool {
	switch k {
	case Conflict:
		return op.write && op.conditional
	case Forbidden, Invalid, TooManyRequests, Unavailable, CommitThen503, Slow, ResetConns:
		return op.write && !op.external
	case InternalError, Timeout, Truncated:
		return !op.external
	case DropRequest, Outage:
		return true
	case DriftDelete:
		return op.made != ""
	case DriftEdit:
		return op.made != "" && op.verb() != "delete"
	case SlowRenewal:
		return false // enumerated if the controller renews a Lease
	}
	return op.write // external calls count as writes
}
