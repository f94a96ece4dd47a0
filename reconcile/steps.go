package reconcile

import (
	"context"
	"fmt"
)

// Step is one part of a reconcile.
type Step[T any] struct {
	// Name stands in errors. Required, and unique in its list.
	Name string

	// Run brings this part one step closer to what obj asks for. nil and no error
	// mean that the part is as it should be and the next step may run. A Result
	// that is not nil ends the list: there is something to wait for, or nothing
	// left to do. Required.
	//
	// Run must be idempotent: nothing remembers that it ran before, so each pass
	// through the list calls it again.
	Run func(ctx context.Context, obj T) (*Result, error)
}

// Steps is a reconcile written as a list of steps, for those that are long. T is
// what the steps work on: the object, a struct around it, or the key, with which
// the method Run is a [Func]. A Steps holds no state, so it may be used for many
// keys at once; nil and empty ones do nothing and succeed.
//
// The list always starts at its first step, as a crash may have happened
// anywhere: what is done already is found out by looking, never from memory.
type Steps[T any] []Step[T]

// Run calls the steps in their order, until one returns an error or a Result, or
// ctx is done. The Result is that of the step which ended the list, the zero one
// if none did; next to an error it has the meaning that it has in the table of
// the package comment.
//
// An error names the step and wraps what the step returned, so that it is classed
// as without Steps. If ctx is done before a step, the error names that step and
// wraps the cause. A list with a step that lacks a name or a Run, or with two of
// one name, calls none of its steps and fails with [ErrTerminal]. Panics pass
// through.
func (s Steps[T]) Run(ctx context.Context, obj T) (Result, error) {
	if err := s.validate(); err != nil {
		return Result{}, err
	}
	for _, step := range s {
		if ctx.Err() != nil {
			return Result{}, fmt.Errorf("step %s: not started: %w", step.Name, context.Cause(ctx))
		}
		res, err := step.Run(ctx, obj)
		if err != nil {
			err = fmt.Errorf("step %s: %w", step.Name, err)
		}
		switch {
		case res != nil:
			return *res, err
		case err != nil:
			return Result{}, err
		}
	}
	return Result{}, nil
}

// validate looks for names by comparing all pairs: lists are short, and a map
// would be an allocation on each run.
func (s Steps[T]) validate() error {
	for i, step := range s {
		switch {
		case step.Name == "":
			return fmt.Errorf("reconcile: Steps[%d].Name is empty: set it, errors name the step: %w", i, ErrTerminal)
		case step.Run == nil:
			return fmt.Errorf("reconcile: Steps[%d].Run is nil: set it to the function of step %s: %w", i, step.Name, ErrTerminal)
		}
		for j := range i {
			if s[j].Name == step.Name {
				return fmt.Errorf("reconcile: Steps[%d].Name is %s, as that of Steps[%d]: give each step a name of its own: %w", i, step.Name, j, ErrTerminal)
			}
		}
	}
	return nil
}
