package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/bench"
)

const (
	outageLength  = 3 * time.Second
	outageTouches = 25               // by the user, one each outageLength/30
	outageWait    = 10 * time.Second // for the first success after it
)

// Figures of the row.
const (
	creationReconciles = "reconciles, creation"
	creationCalls      = "external calls, creation"
	changeReconciles   = "reconciles, change"
	changeCalls        = "external calls, change"
	outageReconciles   = "reconciles, outage"
	outageStatuses     = "status writes, outage"
	outageSeconds      = "seconds from its end to the success"
)

// Cases of the row.
const (
	createAndChange = "create and change"
	outageAlone     = "outage"
	outageEvents    = "outage with events"
)

func init() {
	bench.Register(bench.Row{
		Name: "life/reconciles",
		About: "Reconciles of the object of life/requests with a real API server. A reconcile is one call of the reconcile function, and an external call is one request " +
			"to the service outside the cluster. In the first case, 16 objects are created, and then their specs change. In the other cases, the service fails for 3 s " +
			"from the creation of a single object, and each failed reconcile writes the error to a condition of the status. In the second case, each error has a new " +
			"request id, so each status differs. A rival's own status write runs its key at once: it never waits, and so it also sees the end of the outage at once. In " +
			"the third case, all errors are equal, and the user changes an annotation every 100 ms until 0.5 s before the end of the outage. The seconds are a time, " +
			"not a count: from the end of the outage to the first reconcile without an error. The row waits for 10 s at most, so 10 means 10 or more. All contenders " +
			"have the default rate limiter of their queue, and write only a status that differs. client-go by hand is a worker loop on client-go's rate-limiting " +
			"queue, which writes a child only if it differs. The rivals have no predicates: one on the generation would drop the events of status writes and of " +
			"annotations.",
		Op: "object",
		Goals: []bench.Goal{
			// One reconcile has work. The events of its writes cause at most one more.
			{Figure: creationReconciles, AtMost: 2},
			{Figure: creationCalls, AtMost: 2},
			{Figure: changeReconciles, AtMost: 2},
			{Figure: changeCalls, AtMost: 2},
			// The delays double from 5 ms and are at least half of that, so the 12th reconcile
			// is after 5 s.
			{Case: outageAlone, Figure: outageReconciles, AtMost: 11, Worst: true},
			{Case: outageAlone, Figure: outageStatuses, AtMost: 11, Worst: true},
			{Case: outageEvents, Figure: outageReconciles, AtMost: 11 + outageTouches, Worst: true},
			// At the end of the outage, a delay of at most 2.56 s runs, except in few repeats.
			{Figure: outageSeconds, AtMost: 2},
		},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			w, err := openLifeWorld(ctx)
			if err != nil {
				return nil, nil, err
			}
			var pairs []bench.Pair
			for _, c := range []struct {
				name    string
				objects int
				play    func(ctx context.Context, p *lifePlay, m *bench.Meter) error
			}{
				{createAndChange, lives, playChange},
				{outageAlone, 1, playOutage},
				{outageEvents, 1, playOutageEvents},
			} {
				contender := func(name, module string) bench.Contender {
					return bench.Contender{Name: name, Module: module, Run: func(ctx context.Context, m *bench.Meter) (int, error) {
						n := m.N(c.objects)
						return n, w.count(logr.NewContext(ctx, logr.Discard()), lifeKinds()[name], n, m, c.play)
					}}
				}
				pairs = append(pairs,
					bench.Pair{Case: c.name, Ours: contender("controllerkit", ""), Theirs: contender(byHand, "k8s.io/client-go")},
					bench.Pair{Case: c.name, Ours: contender("controllerkit", ""), Theirs: contender(guardedStatus, "sigs.k8s.io/controller-runtime")},
				)
			}
			return pairs, w.stop, nil
		},
	})
}

// count runs a case under one controller, and then deletes the objects.
func (w *lifeWorld) count(
	ctx context.Context, kind lifeKind, n int, m *bench.Meter, play func(ctx context.Context, p *lifePlay, m *bench.Meter) error,
) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	quiet := lifeQuiet
	if m.Quick {
		quiet /= 10
	}
	p, err := w.open(ctx, kind, n, quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.controller.stop()) }()
	if err := play(ctx, p, m); err != nil {
		return err
	}
	if err := p.delete(ctx); err != nil {
		return err
	}
	return p.checkGone(ctx)
}

func playChange(ctx context.Context, p *lifePlay, m *bench.Meter) error {
	for _, phase := range []struct {
		reconciles, calls string // figures
		play              func(context.Context) error
	}{
		{creationReconciles, creationCalls, p.create},
		{changeReconciles, changeCalls, p.change},
	} {
		reconciles, calls := p.counts.reconciles.Load(), p.outside.made()
		err := phase.play(ctx)
		if err == nil {
			err = p.quiet(ctx)
		}
		if err == nil {
			_, err = p.checkThere(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", phase.reconciles, err)
		}
		m.Count(phase.reconciles, float64(p.counts.reconciles.Load()-reconciles))
		m.Count(phase.calls, float64(p.outside.made()-calls))
	}
	return nil
}

// change changes the specs.
func (p *lifePlay) change(ctx context.Context) error {
	return p.each(ctx, func(ctx context.Context, key types.NamespacedName) error {
		_, err := p.world.widgets.Patch(ctx, key.Name, types.MergePatchType, []byte(`{"spec":{"text":"changed"}}`), metav1.PatchOptions{})
		return err
	}, func(w *widget) bool {
		if w == nil || w.Spec.Text != "changed" {
			return false
		}
		ready := meta.FindStatusCondition(w.Status.Conditions, "Ready")
		return ready != nil && ready.ObservedGeneration == w.Generation
	})
}

func playOutage(ctx context.Context, p *lifePlay, m *bench.Meter) error {
	return p.outage(ctx, m, 0, func(call int) error { return fmt.Errorf("the service failed (request id %d)", call) })
}

func playOutageEvents(ctx context.Context, p *lifePlay, m *bench.Meter) error {
	down := errors.New("the service is down")
	return p.outage(ctx, m, outageTouches, func(int) error { return down })
}

// outage creates an object, which the user touches, while the service fails. It waits for the
// first success after that.
func (p *lifePlay) outage(ctx context.Context, m *bench.Meter, touches int, fail func(call int) error) error {
	length, wait := outageLength, outageWait
	if m.Quick {
		length, wait = length/10, wait/10
	}
	p.outside.failWith(fail)
	key := p.keys[0]
	if err := p.world.create(ctx, key); err != nil {
		return err
	}
	end, tick := time.After(length), time.NewTicker(length/30)
	defer tick.Stop()
	for down := true; down; {
		select {
		case <-tick.C:
			if touches--; touches >= 0 {
				if err := p.world.touch(ctx, key, fmt.Sprint(touches)); err != nil {
					return err
				}
			}
		case <-end:
			down = false
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	m.Count(outageReconciles, float64(p.counts.reconciles.Load()))
	m.Count(outageStatuses, float64(p.counts.statuses.Load()))

	p.outside.failWith(nil)
	restored := time.Now()
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	always := func(*widget) bool { return true }
	err := p.until(within, p.keys, always)
	m.Count(outageSeconds, min(time.Since(restored), wait).Seconds())
	if err != nil {
		p.controller.resync(key) // ends the delay
		return p.until(ctx, p.keys, always)
	}
	return nil
}
