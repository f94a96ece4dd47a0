package contender

import (
	"context"
	"time"
)

// NewProcess returns a Process of one object with the flag -call.
func NewProcess(call time.Duration) *Process {
	p := &Process{call: call, all: make(chan struct{})}
	p.left.Store(1)
	return p
}

// Wait waits for the version of a Command.
func (p *Process) Wait(ctx context.Context, c Command) { p.sights.wait(ctx, c) }

// Take returns the sights since the last Take.
func (p *Process) Take() []Sight { return p.sights.take() }

// Cut returns the number of calls that were cut.
func (p *Process) Cut() int64 { return p.cut.Load() }
