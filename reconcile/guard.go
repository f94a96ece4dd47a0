package reconcile

import "time"

// The hot-loop guard slows down a key that makes itself run: one whose calls write
// something that is an event of the key again. It decides by two questions.
//
// Is it hot? Each call costs a key callCost, and it may owe callsAtOnce times that
// at most: about that many calls in a row, or one a second for ever. What RequeueAfter
// brings is free, and so is a retry where it can be told from an event: both are spaced
// by others.
//
// Do events explain it? A key that owes too much is held back after its call. What
// it wrote comes back as an event at once; what others write comes at any time. So
// an event that comes echo after the call or later explains the next call, which it
// brings at once. The sooner after that it comes the more of them there seem to be, so
// it explains some calls after that one too. If none comes, the pause is doubled.
const (
	callCost    = 950 * time.Millisecond
	callsAtOnce = 25
	echo        = time.Second

	// firstPause ends a burst: the key of an honest one waits for this long, once.
	// In it no event can tell anything.
	firstPause = echo

	// lastPause is how long an event waits that came within echo of a call.
	lastPause = 8 * time.Second

	// maxExplained bounds the calls that one event explains; they double until then.
	// explains is for how long it does, at the rate that it lets one assume.
	maxExplained = 256
	explains     = 4 * time.Second

	// namedAfter is how many pauses in a row that nothing has explained tell a loop
	// from the end of a burst.
	namedAfter = 3

	// maxWarm bounds the keys that are watched. As only those count that ran in the
	// last seconds, more are a sign of many keys that run once, which is no loop.
	maxWarm = 1 << 13
)

// guard is the hot-loop guard of a run. Its times are of the run's clock.
type guard[K comparable] struct {
	warm   map[K]debt // keys that ran lately
	hot    map[K]*pauses
	swept  time.Duration // when warm was looked through for keys to forget
	cooled time.Duration // when hot was
}

// debt is what a key owes for its last calls.
type debt struct {
	paid time.Duration // when it owes nothing any more
	due  time.Duration // when a retry or a RequeueAfter brings it; 0: it is none
}

// pauses are those of a hot key.
type pauses struct {
	began     time.Duration // when it became hot
	calls     int           // since then
	ended     time.Duration // when its last call ended
	pause     time.Duration // from that to the next call
	due       time.Duration // as of debt
	explained int           // calls that the last event explained
	free      int           // what is left of them
	loops     int           // pauses in a row that no event explained
	named     bool

	// Of a key that is held back.
	held     bool
	priority int
	timer    *time.Timer // adds it to the queue when the pause is over
}

// admit decides whether the key may be called. asked says that the loop itself has
// asked for the call. If not, the key is held back; a pause of more than 0 has just
// begun then.
func (g *guard[K]) admit(key K, now time.Duration, asked bool) (ok bool, pause time.Duration) {
	p := g.hot[key]
	if p == nil {
		ok, due := g.charge(key, now, asked)
		if ok {
			return true, 0
		}
		p = g.heat(key, now)
		p.due = due
	}
	since := now - p.ended
	own := p.due > 0 && now >= p.due // the Func's RequeueAfter explains nothing
	if own {
		p.due = 0
	}
	switch {
	case p.held && since >= p.pause: // nothing has explained it
		p.explained, p.free = 0, 0
		p.loops++
		p.pause = min(2*p.pause, lastPause)
	case !p.held && since >= lastPause: // it has come to rest
		delete(g.hot, key)
	case p.held && own:
		return false, 0
	case !p.held && (asked || own):
	case since >= echo:
		p.explained = min(max(1, 2*p.explained), maxExplained, int(explains/(since-echo+time.Millisecond)))
		p.free, p.loops = p.explained, 0
		p.pause = max(2*firstPause, p.pause/2)
	case p.free > 0:
		p.free--
	case p.held:
		return false, 0
	default:
		p.held = true
		return false, p.pause - since
	}
	p.release()
	p.ended = now // the key is not at rest while it runs
	p.calls++
	return true, 0
}

// heat makes the key a hot one. Those that came to rest and did not run again, as their
// objects are gone, are forgotten.
func (g *guard[K]) heat(key K, now time.Duration) *pauses {
	if g.hot == nil {
		g.hot = map[K]*pauses{}
	}
	if now-g.cooled >= time.Second {
		g.cooled = now
		for key, p := range g.hot {
			if !p.held && now-p.ended >= lastPause {
				delete(g.hot, key)
			}
		}
	}
	p := &pauses{began: now, ended: now, pause: firstPause}
	g.hot[key] = p
	return p
}

// charge adds a call to what the key owes, and reports whether that is not too much,
// and when the key is due.
func (g *guard[K]) charge(key K, now time.Duration, asked bool) (ok bool, due time.Duration) {
	d, known := g.warm[key]
	if asked || d.due > 0 && now >= d.due {
		if d.due > 0 {
			d.due = 0
			g.warm[key] = d
		}
		return true, 0
	}
	d.paid = max(d.paid, now) + callCost
	switch {
	case d.paid-now > callsAtOnce*callCost:
		delete(g.warm, key)
		return false, d.due
	case !known && len(g.warm) >= maxWarm && !g.sweep(now):
		return true, 0
	case g.warm == nil:
		g.warm = map[K]debt{}
	}
	g.warm[key] = d
	return true, 0
}

// sweep forgets the keys that owe nothing, at most once a second. It reports whether
// there is room.
func (g *guard[K]) sweep(now time.Duration) bool {
	if now-g.swept < time.Second {
		return false
	}
	g.swept = now
	for key, d := range g.warm {
		if d.paid <= now {
			delete(g.warm, key)
		}
	}
	return len(g.warm) < maxWarm
}

// expect says that the loop has asked for the next call of the key.
func (g *guard[K]) expect(key K, due time.Duration) {
	// A queue may keep an earlier one that an event came before.
	if p := g.hot[key]; p != nil {
		if p.due == 0 || due < p.due {
			p.due = due
		}
	} else if d, ok := g.warm[key]; ok && (d.due == 0 || due < d.due) {
		d.due = due
		g.warm[key] = d
	}
}

// ended says that a call of the key has ended. It reports whether the key is to be
// named, once, as one that makes itself run.
func (g *guard[K]) ended(key K, now time.Duration) (calls int, since time.Duration, name bool) {
	p := g.hot[key]
	if p == nil {
		return 0, 0, false
	}
	p.ended = now
	if p.named || p.loops < namedAfter {
		return 0, 0, false
	}
	p.named = true
	return p.calls + callsAtOnce, now - p.began, true
}

func (p *pauses) release() {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.held, p.timer = false, nil
}

// admitLocked asks the guard whether the key may be called, and holds it back if not.
func (r *run[K]) admitLocked(key K, priority int, now time.Duration, why uint64) bool {
	// A key that failed, and of which no source has told anything, is a retry. Where
	// there are no sources it may be an event as well.
	asked := false
	if why == 0 && r.triggers.sourced.Load() {
		_, asked = r.streaks[key]
	}
	ok, pause := r.guard.admit(key, now, asked)
	if ok {
		return true
	}
	p := r.guard.hot[key]
	if pause == 0 {
		p.priority = max(p.priority, priority)
		return false
	}
	p.priority = priority
	var timer *time.Timer
	timer = time.AfterFunc(pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()   // nothing is added once Run has returned
		if p.timer == timer { // if not, that pause was ended by an event
			r.add(addOptions{Priority: p.priority}, key)
		}
	})
	p.timer = timer
	return false
}

// releaseAll gives back the keys that are held back, for the next Run.
func (r *run[K]) releaseAll() {
	r.mu.Lock()
	hot := r.guard.hot
	r.guard.hot = nil
	held := map[K]int{}
	for key, p := range hot {
		if p.held {
			held[key] = p.priority
		}
		p.release()
	}
	r.mu.Unlock()
	for key, priority := range held {
		r.putBack(key, priority)
	}
}
