package elections

import (
	"fmt"
	"slices"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// slack is the time that a failover may take in addition to LeaseDuration and a
// jittered RetryPeriod.
const slack = 250 * time.Millisecond

// noticed bounds the time until a watch reports an edit.
const noticed = 250 * time.Millisecond

// An Overlap is a time in which two replicas did guarded work, or one finished its work
// after another had begun to lead.
type Overlap struct {
	A, B string
	From time.Time
	For  time.Duration
}

// A Verdict is the outcome of one schedule.
type Verdict struct {
	Schedule Schedule
	Timeline string

	Terms    int       // number of terms
	Versions int       // of the Lease
	Overlaps []Overlap // of guarded work
	Drains   []Overlap // of a drain within its time with another's work

	ForeignReleases int // a replica emptied the record of another
	EarlyReleases   int // the Lease was released while lead was running
	Failover        time.Duration
	FailoverNoise   time.Duration // stalls of the machine during Failover; measured only over the bound

	Unreleased   bool          // the last leader stopped in time without faults, and the Lease is still held
	ReleaseNoise time.Duration // stalls of the machine while it should have been released

	missing   string        // whose leadership was waited for in vain; empty: nobody's
	waited    time.Duration // for it
	waitNoise time.Duration // stalls of the machine meanwhile

	noise    time.Duration // at the longest overlap
	problems []string
}

// judge makes the verdict of all records.
func (r *run) judge(f failover) Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := Verdict{Schedule: r.script, Terms: len(r.tenures), EarlyReleases: r.early, problems: r.problems}
	v.Overlaps, v.Drains = overlaps(r.tenures, r.script.DrainLimit)
	for _, o := range v.Overlaps {
		if o.For == Longest(v.Overlaps) {
			v.noise = r.world.noise.within(o.From.Add(-r.script.RenewDeadline), o.From.Add(o.For))
		}
	}
	versions := r.book.all()
	v.Versions = len(versions)
	foreign, problems := stored(versions)
	v.ForeignReleases = foreign
	if r.script.Class == Lawful {
		v.problems = append(v.problems, problems...)
		v.problems = append(v.problems, grows(r.tenures)...)
	}
	if !f.from.IsZero() && f.missing == "" {
		v.Failover = f.to.Sub(f.from)
		if v.Failover > r.script.FailoverBound() {
			v.FailoverNoise = r.world.noise.within(f.from, f.to)
		}
	}
	if f.missing != "" {
		v.missing, v.waited = f.missing, f.to.Sub(f.from)
		v.waitNoise = r.world.noise.within(f.from, f.to)
	}
	if n := len(versions); n > 0 && len(r.tenures) > 0 && r.script.failover {
		slices.SortFunc(r.tenures, func(a, b *tenure) int { return a.start.Compare(b.start) })
		t := r.tenures[len(r.tenures)-1]
		inTime := !t.asked.IsZero() && t.left.Sub(t.asked) < r.script.DrainLimit*9/10 && !t.checked.IsZero()
		if v.Unreleased = inTime && versions[n-1].holder() != ""; v.Unreleased {
			v.ReleaseNoise = r.world.noise.within(t.asked, t.left.Add(r.script.RenewDeadline/2))
		}
	}
	v.Timeline = r.timeline()
	return v
}

// FailoverBound is the longest time without a leader after a crash.
func (s Schedule) FailoverBound() time.Duration {
	return s.LeaseDuration + s.RetryPeriod*12/10 + slack
}

// overlaps compares every tenure with the tenures of other lives, to the nanosecond.
func overlaps(tenures []*tenure, drainLimit time.Duration) (guarded, drains []Overlap) {
	for i, a := range tenures {
		for _, b := range tenures[:i] {
			if a.who == b.who {
				continue
			}
			if o := overlap(a, b, a.start, a.guarded(), b.start, b.guarded()); o.For > 0 {
				guarded = append(guarded, o)
			}
			if o := overlap(a, b, a.guarded(), a.drained(drainLimit), b.start, b.guarded()); o.For > 0 {
				drains = append(drains, o)
			}
			if o := overlap(b, a, b.guarded(), b.drained(drainLimit), a.start, a.guarded()); o.For > 0 {
				drains = append(drains, o)
			}
		}
	}
	return guarded, drains
}

func overlap(a, b *tenure, aFrom, aTo, bFrom, bTo time.Time) Overlap {
	from := later(aFrom, bFrom)
	return Overlap{a.who, b.who, from, earlier(aTo, bTo).Sub(from)}
}

// stored compares each version of the Lease with the version before it. A record that
// changed without its renewTime was written by no elector, whoever owns that field.
func stored(versions []version) (foreign int, problems []string) {
	var author string // of the record of the version before
	for i, now := range versions {
		if i == 0 || versions[i-1].deleted || now.deleted || versions[i-1].lease.UID != now.lease.UID {
			author = now.writer
			continue
		}
		old, before := versions[i-1], author
		switch {
		case apiequality.Semantic.DeepEqual(old.lease.Spec, now.lease.Spec):
			continue // metadata
		case now.lease.Spec.RenewTime == nil || old.lease.Spec.RenewTime.Equal(now.lease.Spec.RenewTime):
			author = personName
			continue
		}
		author = now.writer
		switch at := fmt.Sprintf("(version %s)", now.lease.ResourceVersion); {
		case author == personName:
		case now.holder() == "" && old.holder() != "" && author != before:
			foreign++
			problems = append(problems, fmt.Sprintf("%s released the Lease that %s held %s", author, before, at))
		case now.transitions() < old.transitions():
			problems = append(problems, fmt.Sprintf("leaseTransitions went from %d to %d %s", old.transitions(), now.transitions(), at))
		case now.holder() != "" && author != before && now.transitions() == old.transitions():
			problems = append(problems, fmt.Sprintf("%s took the Lease from %s and kept leaseTransitions at %d %s", author, before, now.transitions(), at))
		}
	}
	return foreign, problems
}

// grows compares the known terms in the order of their begin.
func grows(tenures []*tenure) (problems []string) {
	sorted := slices.Clone(tenures)
	slices.SortFunc(sorted, func(a, b *tenure) int { return a.start.Compare(b.start) })
	last := int64(-1)
	for _, t := range sorted {
		if t.term >= 0 && t.term <= last {
			problems = append(problems, fmt.Sprintf("%s leads in term %d after term %d", t.who, t.term, last))
		}
		last = max(last, t.term)
	}
	return problems
}

// Longest returns the longest of overlaps, or 0.
func Longest(overlaps []Overlap) (longest time.Duration) {
	for _, o := range overlaps {
		longest = max(longest, o.For)
	}
	return longest
}

// Total returns the sum of overlaps.
func Total(overlaps []Overlap) (total time.Duration) {
	for _, o := range overlaps {
		total += o.For
	}
	return total
}

// Problems returns the promises of package leader that the schedule broke. The time of
// a failover, and of an overlap after an edit, is compared with the bound and the known
// stalls of the machine. A forbidden overlap has no such allowance.
func (v Verdict) Problems() []string {
	problems := v.Unsafe()
	// A release takes two calls, in half of RenewDeadline.
	if v.Unreleased && v.ReleaseNoise < v.Schedule.RenewDeadline/4 {
		problems = append(problems, fmt.Sprintf("the last leader stopped in time and did not release the Lease (the machine stood still for %v)", v.ReleaseNoise))
	}
	if v.missing != "" && v.waitNoise < v.waited/2 {
		problems = append(problems, fmt.Sprintf("nobody leads %v after %s (the machine stood still for %v)", v.waited, v.missing, v.waitNoise))
	}
	if v.Failover > v.Schedule.FailoverBound()+v.FailoverNoise {
		problems = append(problems, fmt.Sprintf("nobody led for %v after a crash, want %v at most (the machine stood still for %v)", v.Failover, v.Schedule.FailoverBound(), v.FailoverNoise))
	}
	return problems
}

// Unsafe returns the broken promises that hold whatever the API server does: all but those
// about the time until another leads.
func (v Verdict) Unsafe() []string {
	problems := slices.Clone(v.problems)
	bound, allowance := time.Duration(0), time.Duration(0)
	switch v.Schedule.Class {
	case Edited:
		bound, allowance = noticed, v.noise
	case Blind:
		bound, allowance = v.Schedule.RenewDeadline, v.noise
	}
	if longest := Longest(v.Overlaps); longest > bound+allowance {
		for _, o := range v.Overlaps {
			problems = append(problems, fmt.Sprintf("%s and %s did guarded work for %v at the same time, want %v at most (the machine stood still for %v)", o.A, o.B, o.For, bound, v.noise))
		}
	}
	if v.Schedule.Class == Lawful {
		for _, o := range v.Drains {
			problems = append(problems, fmt.Sprintf("%s went on for %v of the time it was given to stop while %s led", o.A, o.For, o.B))
		}
	}
	if v.EarlyReleases > 0 {
		problems = append(problems, fmt.Sprintf("the Lease was released %d times while lead was running", v.EarlyReleases))
	}
	if v.ForeignReleases > 0 && v.Schedule.Class != Lawful {
		problems = append(problems, fmt.Sprintf("the Lease of another was released %d times", v.ForeignReleases))
	}
	return problems
}

// A Summary is the outcome of many schedules of a class.
type Summary struct {
	Schedules, Terms, Versions     int
	Overlapping                    int // schedules with an overlap
	Overlaps, Drains               []Overlap
	ForeignReleases, EarlyReleases int
	Failovers                      []time.Duration
	Slow                           int // failovers over the bound
	Unreleased                     int // Leases that were not released
}

// Add counts a verdict.
func (s *Summary) Add(v Verdict) {
	s.Schedules++
	s.Terms += v.Terms
	s.Versions += v.Versions
	s.Overlaps = append(s.Overlaps, v.Overlaps...)
	if len(v.Overlaps) > 0 {
		s.Overlapping++
	}
	s.Drains = append(s.Drains, v.Drains...)
	s.ForeignReleases += v.ForeignReleases
	s.EarlyReleases += v.EarlyReleases
	if v.Unreleased {
		s.Unreleased++
	}
	if v.Failover > 0 {
		s.Failovers = append(s.Failovers, v.Failover)
		if v.Failover > v.Schedule.FailoverBound() {
			s.Slow++
		}
	}
}

// String returns all figures in one line.
func (s *Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d schedules, %d terms, %d versions of the Lease: %d overlaps of guarded work in %d schedules, the longest %v, %v in all; "+
		"%d times work was draining beside the next leader, %v in all; foreign Leases released: %d; released while lead ran: %d",
		s.Schedules, s.Terms, s.Versions, len(s.Overlaps), s.Overlapping, Longest(s.Overlaps).Round(100*time.Microsecond), ms(Total(s.Overlaps)),
		len(s.Drains), ms(Total(s.Drains)), s.ForeignReleases, s.EarlyReleases)
	if n := len(s.Failovers); n > 0 {
		f := slices.Sorted(slices.Values(s.Failovers))
		fmt.Fprintf(&b, "; %d failovers after a crash: p50 %v, p99 %v, max %v, over the bound: %d; Leases not released at the end: %d", n, ms(f[n/2]), ms(f[n*99/100]), ms(f[n-1]), s.Slow, s.Unreleased)
	}
	return b.String()
}
