package elections

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// at is noon and some milliseconds; 0 means never.
func at(ms int) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return noon.Add(time.Duration(ms) * time.Millisecond)
}

// times of a tenure, in milliseconds.
type times struct{ start, ended, checked, left, asked, died int }

func (m times) tenure(who string) *tenure {
	return &tenure{who: who, start: at(m.start), ended: at(m.ended), checked: at(m.checked), left: at(m.left), asked: at(m.asked), died: at(m.died)}
}

func TestOverlaps(t *testing.T) {
	for _, tt := range []struct {
		name            string
		a, b            times
		same            bool
		guarded, drains time.Duration
	}{
		{name: "one after the other", a: times{start: 1, ended: 10, left: 12}, b: times{start: 10, ended: 20, left: 20}},
		{name: "context open", a: times{start: 1, ended: 13, left: 13}, b: times{start: 10, ended: 20, left: 20}, guarded: 3},
		{name: "one within the other", a: times{start: 1, ended: 50, left: 50}, b: times{start: 10, ended: 20, left: 20}, guarded: 10},
		{name: "check succeeded", a: times{start: 1, ended: 5, checked: 12, left: 15}, b: times{start: 10, ended: 20, left: 20}, guarded: 2},
		{name: "crashed before", a: times{start: 1, ended: 13, left: 13, died: 9}, b: times{start: 10, ended: 20, left: 20}},
		{name: "crashed too late", a: times{start: 1, ended: 13, left: 13, died: 11}, b: times{start: 10, ended: 20, left: 20}, guarded: 1},
		{name: "same process", a: times{start: 1, ended: 13, left: 13}, b: times{start: 10, ended: 20, left: 20}, same: true},
		{name: "lost, lingers", a: times{start: 1, ended: 9, left: 15}, b: times{start: 10, ended: 20, left: 20}},
		{name: "asked to stop, drains", a: times{start: 1, asked: 9, ended: 9, left: 15}, b: times{start: 10, ended: 20, left: 20}, drains: 5},
		{name: "asked to stop, longer than given", a: times{start: 1, asked: 9, ended: 9, left: 90}, b: times{start: 30, ended: 50, left: 50}, drains: 9},
		{name: "lost, asked to stop later", a: times{start: 1, ended: 9, asked: 10, left: 15}, b: times{start: 10, ended: 20, left: 20}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			names := []string{"a", "b"}
			if tt.same {
				names[1] = "a"
			}
			a, b := tt.a.tenure(names[0]), tt.b.tenure(names[1])
			for _, order := range [][]*tenure{{a, b}, {b, a}} {
				guarded, drains := overlaps(order, 30*time.Millisecond)
				got := [2]time.Duration{Total(guarded), Total(drains)}
				want := [2]time.Duration{tt.guarded * time.Millisecond, tt.drains * time.Millisecond}
				if got != want {
					t.Errorf("guarded work and drains overlap by %v, want %v", got, want)
				}
			}
		})
	}
}

func TestStored(t *testing.T) {
	type record struct {
		writer, holder string
		renewed        int
		transitions    int32
		uid            types.UID
		deleted        bool
	}
	for _, tt := range []struct {
		name    string
		records []record
		foreign int
		want    []string // in the problems
	}{
		{name: "a term and the next", records: []record{
			{writer: "a", holder: "A", renewed: 1}, {writer: "a", holder: "A", renewed: 2}, {writer: "a", renewed: 3},
			{writer: "b", holder: "B", renewed: 4, transitions: 1},
		}},
		{name: "metadata", records: []record{{writer: "a", holder: "A", renewed: 1}, {writer: "a", holder: "A", renewed: 1}, {writer: "a", renewed: 2}}},
		{name: "released for another", foreign: 1, want: []string{"b released the Lease that a held"}, records: []record{
			{writer: "a", holder: "A", renewed: 1}, {writer: "b", renewed: 2},
		}},
		{name: "released over an edit that kept renewTime", foreign: 1, want: []string{"a released the Lease that person held"}, records: []record{
			{writer: "a", holder: "A", renewed: 1}, {writer: "a", holder: "?", renewed: 1}, {writer: "a", renewed: 2},
		}},
		{name: "emptied by a person", records: []record{{writer: "a", holder: "A", renewed: 1}, {writer: personName, renewed: 2}}},
		{name: "released twice", records: []record{{writer: "a", holder: "A", renewed: 1}, {writer: "a", renewed: 2}, {writer: "b", renewed: 3}}},
		{name: "taken in the same term", want: []string{"b took the Lease from a and kept leaseTransitions at 0"}, records: []record{
			{writer: "a", holder: "A", renewed: 1}, {writer: "b", holder: "B", renewed: 2},
		}},
		{name: "term goes down", want: []string{"leaseTransitions went from 2 to 1"}, records: []record{
			{writer: "a", holder: "A", renewed: 1, transitions: 2}, {writer: "b", holder: "B", renewed: 2, transitions: 1},
		}},
		{name: "another Lease", records: []record{
			{writer: "a", holder: "A", renewed: 1, transitions: 2}, {writer: "a", holder: "A", renewed: 1, transitions: 2, deleted: true},
			{writer: "b", holder: "B", renewed: 2, uid: "other"}, {writer: "b", renewed: 3, uid: "other"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var versions []version
			for _, r := range tt.records {
				versions = append(versions, version{writer: r.writer, deleted: r.deleted, lease: &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{UID: r.uid},
					Spec: coordinationv1.LeaseSpec{
						HolderIdentity: ptr.To(r.holder), RenewTime: ptr.To(metav1.NewMicroTime(at(r.renewed))), LeaseTransitions: ptr.To(r.transitions),
					},
				}})
			}
			foreign, problems := stored(versions)
			if foreign != tt.foreign {
				t.Errorf("%d foreign releases, want %d", foreign, tt.foreign)
			}
			if len(problems) != len(tt.want) {
				t.Fatalf("problems = %q, want %q", problems, tt.want)
			}
			for i, p := range problems {
				if !strings.Contains(p, tt.want[i]) {
					t.Errorf("problem = %q, want %q in it", p, tt.want[i])
				}
			}
		})
	}
}

func TestGrows(t *testing.T) {
	tenures := func(terms ...int64) (all []*tenure) {
		for i, n := range terms {
			all = append(all, &tenure{who: "a", term: n, start: at(i + 1)})
		}
		return all
	}
	for _, tt := range []struct {
		name  string
		terms []int64
		want  int
	}{
		{name: "grow", terms: []int64{0, 1, 5}},
		{name: "same", terms: []int64{0, 1, 1}, want: 1},
		{name: "less", terms: []int64{2, 1, 3}, want: 1},
		{name: "not told", terms: []int64{-1, -1}},
	} {
		all := tenures(tt.terms...)
		slices.Reverse(all)
		if got := grows(all); len(got) != tt.want {
			t.Errorf("%s: problems = %q, want %d", tt.name, got, tt.want)
		}
	}
}

// A failover may take longer than its bound only as far as the machine is known to
// have stood still, and guarded work may never overlap.
func TestProblems(t *testing.T) {
	s := Schedule{LeaseDuration: time.Second, RenewDeadline: 700 * time.Millisecond, RetryPeriod: 100 * time.Millisecond}
	bound := s.FailoverBound()
	if want := 1370 * time.Millisecond; bound != want {
		t.Fatalf("bound = %v, want %v", bound, want)
	}
	one := func(d time.Duration) []Overlap { return []Overlap{{A: "a", B: "b", For: d}} }
	for _, tt := range []struct {
		name  string
		class Class
		v     Verdict
		want  int
	}{
		{name: "nothing"},
		{name: "failover at the bound", v: Verdict{Failover: bound}},
		{name: "failover over it", v: Verdict{Failover: bound + 1}, want: 1},
		{name: "machine stood still", v: Verdict{Failover: bound + 5, FailoverNoise: 5}},
		{name: "not long enough", v: Verdict{Failover: bound + 5, FailoverNoise: 4}, want: 1},
		{name: "nobody leads", v: Verdict{missing: "a crash", waited: 10, waitNoise: 4}, want: 1},
		{name: "nobody leads, machine stood still", v: Verdict{missing: "a crash", waited: 10, waitNoise: 5}},
		{name: "overlap", v: Verdict{Overlaps: one(1), noise: time.Second}, want: 1},
		{name: "drain", v: Verdict{Drains: one(1)}, want: 1},
		{name: "early release", v: Verdict{EarlyReleases: 1}, want: 1},
		{name: "not released", v: Verdict{Unreleased: true, ReleaseNoise: 174 * time.Millisecond}, want: 1},
		{name: "not released in time", v: Verdict{Unreleased: true, ReleaseNoise: 175 * time.Millisecond}},
		{name: "edited, noticed", class: Edited, v: Verdict{Overlaps: one(noticed)}},
		{name: "edited, not noticed", class: Edited, v: Verdict{Overlaps: one(noticed + 1)}, want: 1},
		{name: "edited, machine stood still", class: Edited, v: Verdict{Overlaps: one(noticed + 1), noise: 1}},
		{name: "blind, by the clock", class: Blind, v: Verdict{Overlaps: one(700 * time.Millisecond)}},
		{name: "blind, over it", class: Blind, v: Verdict{Overlaps: one(701 * time.Millisecond)}, want: 1},
		{name: "edited, released for another", class: Edited, v: Verdict{ForeignReleases: 1}, want: 1},
	} {
		tt.v.Schedule = s
		tt.v.Schedule.Class = tt.class
		if got := tt.v.Problems(); len(got) != tt.want {
			t.Errorf("%s: problems = %q, want %d", tt.name, got, tt.want)
		}
	}
}

// A machine may be so slow that nobody leads at all.
func TestJudgeNoTerms(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}
	r := &run{world: &World{}, book: &book{versions: []version{{at: at(1), lease: lease, writer: personName}}}, script: Schedule{failover: true}}
	if got := r.judge(failover{from: at(1), to: at(10), missing: "the faults ended"}).Problems(); len(got) != 1 {
		t.Errorf("problems = %q, want that nobody leads", got)
	}
}

func TestNoise(t *testing.T) {
	n := &noise{}
	n.note(at(100), at(149)) // not worth it
	n.note(at(250), at(320))
	n.note(at(200), at(300))
	n.note(at(400), at(460))
	for _, tt := range []struct {
		name     string
		from, to int
		want     time.Duration
	}{
		{name: "all", from: 1, to: 900, want: 180},
		{name: "part", from: 260, to: 390, want: 60},
		{name: "end", from: 350, to: 410, want: 10},
		{name: "none", from: 500, to: 900},
	} {
		if got := n.within(at(tt.from), at(tt.to)); got != tt.want*time.Millisecond {
			t.Errorf("%s: stood still for %v, want %v", tt.name, got, tt.want*time.Millisecond)
		}
	}
}

func TestTimes(t *testing.T) {
	s := New(7, Blind, Options{})
	slow := s.Times(3)
	if slow.RenewDeadline != 3*s.RenewDeadline || slow.horizon != 3*s.horizon || slow.lives[1][0].start != 3*s.lives[1][0].start ||
		slow.weather[0][0].to != 3*s.weather[0][0].to || slow.edits[0].at != 3*s.edits[0].at {
		t.Errorf("Times(3) = %+v, want three times %+v", slow, s)
	}
	if diff := cmp.Diff(New(7, Blind, Options{}), s, cmp.AllowUnexported(Schedule{}, life{}, spell{}, edit{})); diff != "" {
		t.Errorf("Times changed its schedule:\n%s", diff)
	}
}

// A seed makes the same schedule each time, and only those of lawful elections
// have no edits.
func TestNew(t *testing.T) {
	options := cmp.AllowUnexported(Schedule{}, life{}, spell{}, edit{})
	for seed := range uint64(200) {
		for _, class := range []Class{Lawful, Edited, Blind} {
			s := New(seed, class, Options{Twins: true})
			if diff := cmp.Diff(s, New(seed, class, Options{Twins: true}), options); diff != "" {
				t.Fatalf("seed %d is not the same the second time:\n%s", seed, diff)
			}
			if (len(s.edits) > 0) != (class != Lawful) {
				t.Errorf("%v: %d edits", s, len(s.edits))
			}
			for i, lives := range s.lives {
				if len(lives) == 0 || lives[len(lives)-1].end != 0 || len(lives) > 1 && lives[len(lives)-1].start > s.horizon {
					t.Errorf("%v: replica %d is not there at the end: %+v", s, i, lives)
				}
				if class == Edited && len(s.weather[i]) > 0 {
					t.Errorf("%v: replica %d has weather", s, i)
				}
			}
		}
	}
}
