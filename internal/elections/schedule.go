package elections

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A Class defines the faults of a schedule, and so the promises that apply.
type Class int

const (
	// Lawful: faults of networks, processes and candidates that keep to the protocol.
	// The Lease is neither deleted nor edited. No two replicas may overlap.
	Lawful Class = iota
	// Edited: the Lease is deleted and edited by hand, and the network works. Replicas
	// may overlap until the watch has reported it.
	Edited
	// Blind: as Edited, with a network as in Lawful. Replicas may overlap until the
	// leader's validity is over.
	Blind
)

// String returns the name of the class.
func (c Class) String() string { return [...]string{"lawful", "edited", "blind"}[c] }

// A weather is a fault of a replica's network or process.
type weather int

const (
	slow         weather = iota // it is sent later, unless its sender gives up before
	late                        // it is sent later, even if its sender gave up or died
	lateResponse                // it is executed at once, and the response is late
	lostResponse                // it is executed, and the connection is reset
	silence                     // it never arrives, without an error
	refused                     // the connection is reset
	twice                       // it is sent, and sent again later
	frozen                      // the process sends and sees nothing, then all at once
	silentWatch                 // the watch delivers nothing, then all at once
	cut                         // the watch ends
	weathers
)

func (w weather) String() string {
	return [...]string{"slow", "late", "late answer", "lost answer", "silence", "refused", "twice", "frozen", "no news", "watch cut"}[w]
}

// A spell is a period of one weather. Times count from the beginning of the schedule.
type spell struct {
	from, to time.Duration
	kind     weather
	share    float64       // of the requests; the others pass
	delay    time.Duration // at most
	least    time.Duration // of the delay; 0 means a third of it
}

// A life is one process of a replica.
type life struct {
	identity string
	start    time.Duration
	end      time.Duration // 0 means the end of the schedule
	crash    bool          // it ends without a release
}

// An edit is a change of the Lease by hand.
type edit struct {
	at   time.Duration
	kind editKind
}

type editKind int

const (
	deletion editKind = iota
	noHolder
	otherHolder
	transitionsZero
	longerDuration
	oldRenewTime
	noAnnotations
	noSpec
	editKinds
)

func (k editKind) String() string {
	return [...]string{"delete", "holder emptied", "holder changed", "transitions set to 0", "duration set to 2 s",
		"renewTime set to last year", "annotations removed", "spec emptied"}[k]
}

// A Schedule is the script of one election.
type Schedule struct {
	Seed  uint64
	Class Class

	LeaseDuration, RenewDeadline, RetryPeriod, DrainLimit time.Duration

	horizon  time.Duration // the end of all faults and interference
	failover bool          // ends with a crash of the leader without other faults
	lives    [][]life      // by replica
	weather  [][]spell     // by replica
	edits    []edit
	stranger float64 // probability that a stranger acts just before a write
	stays    bool    // work does not end by itself
}

// Options configure the making of schedules.
type Options struct {
	// Twins lets replicas have the same identity, which client-go's elector does not
	// support.
	Twins bool
	// Brief makes the shortest schedules, for a quick test.
	Brief bool
}

// New makes the schedule of a seed.
func New(seed uint64, class Class, o Options) Schedule {
	rng := rand.New(rand.NewPCG(seed, 0))
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d) + 1)) }
	between := func(a, b time.Duration) time.Duration { return a + upTo(b-a) }
	s := Schedule{
		Seed: seed, Class: class,
		LeaseDuration: time.Second,
		RenewDeadline: between(600*time.Millisecond, 800*time.Millisecond),
		RetryPeriod:   between(100*time.Millisecond, 200*time.Millisecond),
		DrainLimit:    between(300*time.Millisecond, 1200*time.Millisecond),
		horizon:       between(3*time.Second, 5*time.Second),
		failover:      !o.Brief,
	}
	if o.Brief {
		s.horizon = time.Second
	}
	if class == Lawful {
		s.stranger = rng.Float64() * 0.1
	}
	twins := o.Twins && rng.IntN(4) == 0
	for i := range 2 + rng.IntN(2) {
		// How a replica's processes come and go.
		var lives []life
		stable := rng.IntN(3) == 0 // it keeps its name, as in a StatefulSet
		for at := upTo(300 * time.Millisecond); ; {
			l := life{identity: fmt.Sprintf("replica-%d", i), start: at, crash: rng.IntN(3) == 0}
			switch {
			case twins:
				l.identity = "twin"
			case !stable:
				l.identity += fmt.Sprintf("-%d", len(lives))
			}
			l.end = at + between(500*time.Millisecond, s.horizon)
			if l.end > s.horizon-300*time.Millisecond {
				l.end = 0
				lives = append(lives, l)
				break
			}
			lives = append(lives, l)
			at = min(l.end+upTo(time.Second), s.horizon-200*time.Millisecond)
		}
		s.lives = append(s.lives, lives)

		var spells []spell
		add := func(from, length time.Duration, kind weather, share float64) time.Duration {
			to := min(from+length, s.horizon)
			delay := between(20*time.Millisecond, 2*s.RenewDeadline)
			spells = append(spells, spell{from: from, to: to, kind: kind, share: share, delay: delay})
			return to
		}
		for at := between(200*time.Millisecond, time.Second); at < s.horizon && class != Edited; at += upTo(time.Second) {
			if rng.IntN(3) == 0 {
				// A renewal with a late response, followed by silence: if validity
				// counted from the response, another replica would lead before it ends.
				at = add(at, s.RetryPeriod*5/4, lateResponse, 1)
				spells[len(spells)-1].delay, spells[len(spells)-1].least = lateness(rng.IntN(2) == 0, s.RenewDeadline)
				at = add(at, between(time.Second, 2*time.Second), []weather{silence, refused, frozen, frozen}[rng.IntN(4)], 1)
				continue
			}
			at = add(at, between(100*time.Millisecond, 1200*time.Millisecond), weather(rng.IntN(int(weathers))), 0.4+0.6*rng.Float64())
		}
		s.weather = append(s.weather, spells)
	}
	if class != Lawful {
		for range 1 + rng.IntN(3) {
			s.edits = append(s.edits, edit{between(s.horizon/6, s.horizon*5/6), editKind(rng.IntN(int(editKinds)))})
		}
		slices.SortFunc(s.edits, func(a, b edit) int { return int(a.at - b.at) })
	}
	return s
}

// LateRenewal returns a schedule that makes two leaders if validity counts from the
// response to a renewal: one response to the leader is late, and then its network is
// silent for longer than the others wait.
func LateRenewal(seed uint64) Schedule {
	s := Schedule{
		Seed: seed, Class: Lawful,
		LeaseDuration: time.Second, RenewDeadline: 800 * time.Millisecond, RetryPeriod: 100 * time.Millisecond, DrainLimit: time.Second,
		horizon: 3500 * time.Millisecond, failover: true, stays: true,
		lives: [][]life{{{identity: "replica-0"}}, {{identity: "replica-1", start: 500 * time.Millisecond}}},
	}
	from := time.Second + time.Duration(seed%7)*20*time.Millisecond
	delay, least := lateness(seed%4 < 2, s.RenewDeadline)
	s.weather = [][]spell{{
		{from: from, to: from + s.RetryPeriod*5/4, kind: lateResponse, share: 1, delay: delay, least: least},
		{from: from + s.RetryPeriod*5/4, to: s.horizon, kind: frozen}, // the watch too
	}, nil}
	return s
}

// lateness is the longest delay of a response that an elector still awaits, if it
// bounds a call by half of RenewDeadline, or by all of it.
func lateness(half bool, renewDeadline time.Duration) (delay, least time.Duration) {
	if half {
		return renewDeadline * 47 / 100, renewDeadline * 42 / 100
	}
	return renewDeadline * 95 / 100, renewDeadline * 60 / 100
}

// Times returns the same schedule, n times slower.
func (s Schedule) Times(n int) Schedule {
	slower := func(times ...*time.Duration) {
		for _, d := range times {
			*d = time.Duration(int64(n) * int64(*d))
		}
	}
	slower(&s.LeaseDuration, &s.RenewDeadline, &s.RetryPeriod, &s.DrainLimit, &s.horizon)
	lives, weather := make([][]life, len(s.lives)), make([][]spell, len(s.weather))
	for i := range s.lives {
		for _, l := range s.lives[i] {
			slower(&l.start, &l.end)
			lives[i] = append(lives[i], l)
		}
		for _, w := range s.weather[i] {
			slower(&w.from, &w.to, &w.delay, &w.least)
			weather[i] = append(weather[i], w)
		}
	}
	edits := slices.Clone(s.edits)
	for i := range edits {
		slower(&edits[i].at)
	}
	s.lives, s.weather, s.edits = lives, weather, edits
	return s
}

// String returns the seed and the timings.
func (s Schedule) String() string {
	return fmt.Sprintf("seed %d, %s: %d replicas, LeaseDuration %v, RenewDeadline %v, RetryPeriod %v, DrainTimeout %v, faults until %v",
		s.Seed, s.Class, len(s.lives), s.LeaseDuration, ms(s.RenewDeadline), ms(s.RetryPeriod), ms(s.DrainLimit), ms(s.horizon))
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
