package world

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// A Program has the form of Scenario.World: it blocks until ctx is done and all that it started
// has stopped.
type Program = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error

// Together returns a Program that runs programs side by side. If one ends, all end. Its error is
// that of all.
func Together(programs ...Program) Program {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		errs := make([]error, len(programs))
		var wg sync.WaitGroup
		for n, run := range programs {
			wg.Go(func() {
				defer cancel()
				errs[n] = run(ctx, cfg, env)
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
}

// ignore returns nil for errors that the next event cures.
func ignore(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
