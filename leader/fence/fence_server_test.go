package fence_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/leader/fence"
	"github.com/controllerkit/controllerkit/leader/internal/shop"
)

// TestServerFenceCovers is the table in the documentation of Fence, cell by cell:
// what is refused to an earlier leader. Its successor and a person may send all of these writes.
//
// Proves L13.
func TestServerFenceCovers(t *testing.T) {
	t.Parallel()
	s := newShop(t, widgets(t, "fence.test.controllerkit.github.io"), held(3))
	former, present := s.term(2), s.term(3)
	var tests []func()
	for _, tt := range []struct {
		verb           string
		stamp, guardAs bool // whether an earlier leader is refused
	}{
		{verb: "create", stamp: true, guardAs: true},
		{verb: "update", stamp: true, guardAs: true},
		{verb: "patch", stamp: true, guardAs: true},
		{verb: "apply", stamp: true, guardAs: true},
		{verb: "status", stamp: false, guardAs: true},
		{verb: "delete", stamp: false, guardAs: true},
	} {
		for _, how := range []struct {
			name    string
			as      string // term of the user
			stamp   string // of the write
			stored  string // stamp of the object as it is before
			refused bool
		}{
			{name: "stamp, former leader", stamp: former, stored: former, refused: tt.stamp},
			{name: "stamp, present leader", stamp: present, stored: former},
			{name: "GuardAs, former leader", as: former, stored: former, refused: tt.guardAs},
			{name: "GuardAs, former leader, no stamp stored", as: former, refused: tt.guardAs},
			{name: "GuardAs, present leader", as: present, stored: former},
			{name: "both, former leader with a forged stamp", as: former, stamp: present, stored: present, refused: tt.guardAs},
			{name: "both, present leader", as: present, stamp: present, stored: former},
			{name: "no term"},
			{name: "person", as: "person"},
			{name: "person, former stamp stored", as: "person", stored: former},
			{name: "person, present stamp stored", as: "person", stored: present},
			{name: "person, rubbish", as: "person", stamp: "rubbish", stored: "rubbish"},
		} {
			name := strings.NewReplacer(" ", "", ",", "-").Replace(strings.ToLower(tt.verb + "-" + how.name))
			person := s.as(t, "person")
			if tt.verb != "create" {
				if err := s.write(t, person, "create", name, how.stored); err != nil {
					t.Fatal(err)
				}
			}
			tests = append(tests, func() {
				t.Run(tt.verb+", "+how.name, func(t *testing.T) {
					before, _ := person.Get(t.Context(), name, metav1.GetOptions{})
					s.judge(t, s.write(t, s.as(t, how.as), tt.verb, name, how.stamp), how.refused)
					after, _ := person.Get(t.Context(), name, metav1.GetOptions{})
					if changed := !cmp.Equal(before, after); changed == how.refused {
						t.Errorf("the object changed: %v, want %v", changed, !how.refused)
					}
				})
			})
		}
	}
	s.fence(t)
	for _, test := range tests {
		test()
	}
}

// TestServerFenceDecides: which term passes, by the state of the Lease and by the
// stamp that is stored.
//
// Proves L13.
func TestServerFenceDecides(t *testing.T) {
	t.Parallel()
	type row struct {
		name    string
		term    string // "<n>" is number n of this Lease
		stored  string // likewise
		as      []string
		refused bool
	}
	for _, state := range []struct {
		name string
		spec coordinationv1.LeaseSpec
		rows []row
	}{
		{
			name: "held in term 3", spec: held(3),
			rows: []row{
				{name: "present", term: "<3>"},
				{name: "former", term: "<2>", refused: true},
				{name: "first", term: "<0>", refused: true},
				{name: "ahead of what the API server knows", term: "<4>"},
				{name: "far ahead", term: "<2147483647>"},
				{name: "of another Lease", term: "c0ffee/3", refused: true},
				{name: "of another Lease, higher", term: "c0ffee/4", refused: true},

				{name: "over a former", term: "<3>", stored: "<2>"},
				{name: "over its own", term: "<3>", stored: "<3>"},
				{name: "over a later", term: "<3>", stored: "<4>", refused: true},
				{name: "ahead, over a later", term: "<4>", stored: "<5>", refused: true},
				{name: "over a later of another Lease", term: "<3>", stored: "c0ffee/9"},
				{name: "over rubbish", term: "<3>", stored: "rubbish"},
				{name: "over a number beyond all", term: "<3>", stored: "<99999999999>"},
				{name: "numbers are compared as such", term: "<10>", stored: "<9>"},
				{name: "keeps a former stamp", stored: "<2>", refused: true},
				{name: "keeps the present stamp", stored: "<3>"},
				{name: "keeps a former stamp, by GuardAs", stored: "<2>", as: []string{"<3>"}},
				{name: "keeps rubbish", stored: "rubbish"},
				{name: "keeps a stamp of another Lease", stored: "c0ffee/9"},
				{name: "stamp of another Lease over another", term: "c0ffee/9", stored: "c0ffee/8", refused: true},
				{name: "rubbish over other rubbish", term: "rubbish", stored: "garbage", refused: true},
				{name: "over one far ahead", term: "<3>", stored: "<20>"},
				{name: "over the farthest that counts", term: "<3>", stored: "<19>", refused: true},
				{name: "keeps rubbish, by GuardAs", stored: "rubbish", as: []string{"<3>"}},
				{name: "over a later, by GuardAs", stored: "<4>", as: []string{"<3>"}, refused: true},

				{name: "not a term: empty UID", term: "/3", refused: true},
				{name: "not a term: no number", term: "<>", refused: true},
				{name: "not a term: no slash", term: "3", refused: true},
				{name: "not a term: negative", term: "<-1>", refused: true},
				{name: "not a term: leading zero", term: "<03>", refused: true},
				{name: "not a term: plus", term: "<+3>", refused: true},
				{name: "not a term: space", term: "<3> ", refused: true},
				{name: "not a term: line", term: "<3>\n", refused: true},
				{name: "not a term: three parts", term: "<3>/3", refused: true},
				{name: "not a term: too large", term: "<99999999999>", refused: true},
				{name: "not a term: hexadecimal", term: "<0x3>", refused: true},
				{name: "not a term: long", term: "<3" + strings.Repeat("0", 100_000) + ">", refused: true},
				{name: "not a term, by GuardAs", as: []string{"rubbish"}, refused: true},
				{name: "two terms, by GuardAs", as: []string{"<3>", "<4>"}, refused: true},
			},
		},
		{
			name: "released after term 3",
			spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(""), LeaseDurationSeconds: ptr.To[int32](1), LeaseTransitions: ptr.To[int32](3)},
			rows: []row{
				{name: "last", term: "<3>", refused: true},
				{name: "former", term: "<2>", refused: true},
				{name: "next", term: "<4>"},
				{name: "last, by GuardAs", as: []string{"<3>"}, refused: true},
				{name: "next, by GuardAs", as: []string{"<4>"}},
			},
		},
		{
			name: "held, no transitions", spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("b")},
			rows: []row{
				{name: "first", term: "<0>"},
				{name: "next", term: "<1>"},
			},
		},
		{
			name: "empty",
			rows: []row{
				{name: "first", term: "<0>", refused: true},
				{name: "next", term: "<1>"},
			},
		},
	} {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, fenceConfigMaps, state.spec)
			expand := strings.NewReplacer("<", string(s.uid)+"/", ">", "").Replace
			verbs := []string{"apply", "patch"}
			for i, tt := range state.rows {
				for _, verb := range verbs {
					if verb == "patch" || tt.stored != "" {
						if err := s.write(t, s.as(t, "person"), "create", fmt.Sprintf("%s-%d", verb, i), expand(tt.stored)); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			s.fence(t)
			for i, tt := range state.rows {
				t.Run(tt.name, func(t *testing.T) {
					for _, verb := range verbs {
						name := fmt.Sprintf("%s-%d", verb, i)
						var terms []string
						for _, term := range tt.as {
							terms = append(terms, expand(term))
						}
						s.judge(t, s.write(t, s.as(t, append(terms, "")[:max(1, len(terms))]...), verb, name, expand(tt.term)), tt.refused)
					}
				})
			}
		})
	}
}

// TestServerFenceMessages: a refusal has the cause and the cure.
func TestServerFenceMessages(t *testing.T) {
	t.Parallel()
	s := newFencedShop(t, fenceConfigMaps, held(3))
	if err := s.write(t, s.as(t, ""), "create", "later", s.term(5)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		object  string
		stamp   string
		want    string
		invalid bool
	}{
		{name: "malformed", object: "a", stamp: "x'y", want: `the leader's term is 'x'y': it must be <Lease UID>/<number>`, invalid: true},
		{
			name: "former", object: "a", stamp: s.term(2),
			want: "the write is of term " + s.term(2) + ", but Lease " + s.ns + "/shop is held in term " + s.term(3) + ": it comes from an earlier leader",
		},
		{
			name: "stored", object: "later", stamp: s.term(4),
			want: "the write is of term " + s.term(4) + ", but the stored object has the stamp of a later one, " + s.term(5),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := s.write(t, s.as(t, ""), "apply", tt.object, tt.stamp)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want one that says %q", err, tt.want)
			}
			if apierrors.IsInvalid(err) != tt.invalid || apierrors.IsForbidden(err) == tt.invalid {
				t.Errorf("reason = %v, want Invalid: %v, else Forbidden", apierrors.ReasonForError(err), tt.invalid)
			}
			if kube.IsDenied(err) == tt.invalid {
				t.Errorf("IsDenied(%v) = %v, want %v: no role is missing", err, tt.invalid, !tt.invalid)
			}
		})
	}
}

// TestServerFenceLeaseDeleted: while the Lease is absent all writes pass, and
// with the next one the terms of the deleted one are refused.
//
// Proves L13.
func TestServerFenceLeaseDeleted(t *testing.T) {
	t.Parallel()
	s := newFencedShop(t, fenceConfigMaps, held(3))
	former := s.as(t, s.term(3))
	if err := s.write(t, former, "apply", "a", ""); err != nil {
		t.Fatal(err)
	}
	if err := s.leases.Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"create", "update", "patch", "apply", "delete"} {
		if err := s.write(t, s.as(t, "person"), verb, "of-a-person", ""); err != nil {
			t.Errorf("%s by a person while there is no Lease: %v", verb, err)
		}
	}
	shop.Eventually(t, "the fence is open while there is no Lease", func() error {
		return s.write(t, s.as(t, s.term(2)), "apply", "a", "")
	})
	lease, err := s.leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: held(0)}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	shop.Eventually(t, "the terms of the deleted Lease are refused", func() error {
		if err := s.write(t, former, "apply", "a", ""); err == nil {
			return errors.New("passed")
		}
		return nil
	})
	t.Logf("refused %v after the next Lease was created", time.Since(begun).Round(100*time.Microsecond))
	s.judge(t, s.write(t, former, "patch", "a", ""), true)
	s.judge(t, s.write(t, s.as(t, string(lease.UID)+"/0"), "patch", "a", ""), false)
	s.judge(t, s.write(t, s.as(t, ""), "patch", "a", s.term(3)), true)
	s.judge(t, s.write(t, s.as(t, ""), "patch", "a", string(lease.UID)+"/0"), false)
}

// TestServerFenceClosed: with Deny all writes are refused while the Lease is absent.
func TestServerFenceClosed(t *testing.T) {
	t.Parallel()
	s := newFencedShop(t, widgets(t, "closed.test.controllerkit.github.io"), held(3), func(f *fence.Fence) {
		f.ParameterNotFoundAction = admissionregistrationv1.DenyAction
	})
	if err := s.write(t, s.as(t, s.term(3)), "apply", "a", ""); err != nil {
		t.Fatal(err)
	}
	if err := s.leases.Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{s.term(2), s.term(3), "", "person"} {
		shop.Eventually(t, fmt.Sprintf("closed to %q", who), func() error {
			if err := s.write(t, s.as(t, who), "apply", "a", ""); err == nil || !strings.Contains(err.Error(), "failed to configure binding") {
				return fmt.Errorf("apply: %v", err)
			}
			return nil
		})
	}
	lease, err := s.leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: held(0)}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shop.Eventually(t, "open to the next leader", func() error {
		return s.write(t, s.as(t, string(lease.UID)+"/0"), "apply", "a", "")
	})
	s.judge(t, s.write(t, s.as(t, s.term(3)), "patch", "a", ""), true)
	s.judge(t, s.write(t, s.as(t, "person"), "patch", "a", ""), false)
}

// TestServerFenceWindow: how long after a change of the term writes of the former
// leader pass, because the API server has not heard of it. The former leader
// writes without a pause.
//
// Proves L13.
func TestServerFenceWindow(t *testing.T) {
	t.Parallel()
	const changes = 60
	s := newFencedShop(t, fenceConfigMaps, held(0))
	client := s.as(t, "")
	var windows []time.Duration
	late := 0
	for number := range changes {
		obj := s.object("prices", s.term(number)) // nobody else stamps it
		var changed atomic.Pointer[time.Time]
		var last time.Duration // after the change was known to be stored, that a write began
		var wg sync.WaitGroup
		writing := make(chan struct{})
		wg.Go(func() {
			begin := sync.OnceFunc(func() { close(writing) })
			defer begin()
			for begun := time.Now(); time.Since(begun) < shop.Patience; begin() {
				asked := time.Now()
				_, err := client.Apply(t.Context(), "prices", obj, metav1.ApplyOptions{FieldManager: "shop", Force: true})
				if apierrors.IsForbidden(err) {
					return // so it will be from now on
				}
				if err != nil {
					t.Errorf("term %d: %v", number, err)
					return
				}
				if at := changed.Load(); at != nil {
					last = max(last, asked.Sub(*at)) // the end says less: a request can be slow after its admission
				}
			}
			t.Errorf("term %d: writes pass for %v", number, shop.Patience)
		})
		<-writing
		lease, err := s.leases.Get(t.Context(), "shop", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lease.Spec = held(int32(number + 1))
		if _, err := s.leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		changed.Store(&now)
		wg.Wait()
		windows = append(windows, last)
		if last > 0 {
			late++
		}
	}
	slices.Sort(windows)
	longest := windows[len(windows)-1]
	t.Logf("%d changes of the term: in %d a write of the former leader began after the change and passed, the last %v after it (median %v)",
		changes, late, longest.Round(10*time.Microsecond), windows[len(windows)/2].Round(10*time.Microsecond))
	if longest >= time.Second {
		t.Errorf("a write of the former leader passed %v after the change, want less than 1s", longest)
	}
}
