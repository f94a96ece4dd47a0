package external_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/fakeserver"
)

var lives = flag.Int("lives", 90, "how many objects of each service TestLives has")

// A service has machines, each with a size. Each of its calls takes effect at once, and shows and
// ends as late as its kind says.
type service struct {
	name    string
	finds   bool          // Find sees machines
	named   bool          // the id is the token, and no two machines have one; without key, Find sees them
	lag     time.Duration // after which reads show a new machine
	late    time.Duration // for which a machine is busy after each call
	key     time.Duration // for which a second create with one key returns the first machine
	undead  bool          // also if that machine is gone
	visible time.Duration // VisibleAfter

	machines []*machine
	creates  int
	do       func(call func() error) error // the trouble of each call
}

type machine struct {
	id, token, key, size string
	made, busy           time.Time
	deleted              bool
	deleteAt             time.Time
}

func (m *machine) gone() bool {
	return m.deleted || !m.deleteAt.IsZero() && !time.Now().Before(m.deleteAt)
}

// here returns the machines that are not gone.
func (s *service) here() (here []*machine) {
	for _, m := range s.machines {
		if !m.gone() {
			here = append(here, m)
		}
	}
	return here
}

func (s *service) get(id string) *machine {
	for _, m := range s.here() {
		if m.id == id && time.Since(m.made) >= s.lag {
			return m
		}
	}
	return nil
}

// errNoMachine is the error of Update if there is no machine.
var errNoMachine = errors.New("not found")

func (s *service) create(token, key string) (id string, err error) {
	err = s.do(func() error {
		for _, m := range s.machines {
			if s.key > 0 && m.key == key && time.Since(m.made) < s.key && (s.undead || !m.gone()) {
				id = m.id
				return nil
			}
		}
		s.creates++
		id = fmt.Sprint("machine-", s.creates)
		if s.named {
			if id = token; slices.ContainsFunc(s.here(), func(m *machine) bool { return m.id == id }) {
				return nil // it is ours: only our token is its name
			}
		}
		s.machines = append(s.machines, &machine{id: id, token: token, key: key, size: "new", made: time.Now(), busy: time.Now().Add(s.late)})
		return nil
	})
	return id, err
}

// looks reports whether there is a Find.
func (s *service) looks() bool { return s.finds || s.named && s.key == 0 }

// machine returns the Resource of an object, which wants the size.
func (s *service) machine(size string) external.Resource {
	r := external.Resource{
		Annotation: account, VisibleAfter: s.visible, Interval: 10 * time.Minute,
		Create: func(_ context.Context, token string) (string, error) { return s.create(token, token) },
		Observe: func(_ context.Context, id string) (state external.State, err error) {
			err = s.do(func() error {
				m := s.get(id)
				switch {
				case m == nil:
					state = external.Gone
				case time.Now().Before(m.busy):
					state = external.Busy
				case m.size != size:
					state = external.Different
				default:
					state = external.Current
				}
				return nil
			})
			return state, err
		},
		Update: func(_ context.Context, id string) error {
			return s.do(func() error {
				if m := s.get(id); m != nil {
					m.size, m.busy = size, time.Now().Add(s.late)
					return nil
				}
				return errNoMachine
			})
		},
		Delete: func(_ context.Context, id string) error {
			return s.do(func() error {
				if m := s.get(id); m != nil {
					m.deleteAt, m.busy = time.Now().Add(s.late), time.Now().Add(s.late)
				}
				return nil
			})
		},
	}
	if s.looks() {
		r.Find = func(_ context.Context, token string) (id string, found bool, err error) {
			err = s.do(func() error {
				for _, m := range s.here() {
					if m.token == token && time.Since(m.made) >= s.lag {
						if found {
							return fmt.Errorf("machines %s and %s have one token", id, m.id)
						}
						id, found = m.id, true
					}
				}
				return nil
			})
			return id, found, err
		}
	} else {
		r.KeysLast = s.key
	}
	if s.undead {
		r.Replace = func(_ context.Context, token, key string) (string, error) { return s.create(token, key) }
	}
	return r
}

// machines are the kinds of services.
func machines() []*service {
	return []*service{
		{name: "lists", finds: true},
		{name: "lists, late", finds: true, lag: 20 * time.Second, late: 30 * time.Second, visible: time.Minute},
		{name: "lists, knows keys", finds: true, key: time.Hour, undead: true, lag: 20 * time.Second, visible: time.Minute},
		{name: "names", named: true, late: time.Minute},
		{name: "no list, forgets keys", key: time.Hour},
		{name: "no list, forgets names", named: true, key: time.Hour},
		{name: "no list, late, forgets names", named: true, key: time.Hour, lag: 5 * time.Second, late: 30 * time.Second, visible: time.Minute},
		{name: "no list, forgets keys, also of the gone", key: time.Hour, undead: true, late: 40 * time.Second},
		{name: "no list, late, forgets keys", key: time.Hour, undead: true, lag: 5 * time.Second, visible: time.Minute},
	}
}

// deleted calls Delete, and returns how long it waits.
func deleted(ctx context.Context, m *fakeserver.Server, obj *corev1.ConfigMap, r external.Resource) (time.Duration, error) {
	err := external.Delete(ctx, m, obj, r)
	if w := controllerkit.WaitingError(nil); errors.As(err, &w) {
		return w.Waits(), nil
	}
	return 0, err
}

// A life is that of one object: its controller crashes and has stale caches, its service is
// unreachable for hours, users edit and delete it, and somebody changes and deletes its machine.
type life struct {
	*service
	server  *fakeserver.Server
	r       *rand.Rand
	crashes int
	down    time.Time           // until when the service is unreachable
	known   time.Time           // when it was last known which machines there are
	past    []*corev1.ConfigMap // the versions of the object
	history []string
}

// call is a call to the service, which can be unreachable after trouble.
func (l *life) call(call func() error) error {
	if time.Now().Before(l.down) {
		return io.ErrUnexpectedEOF
	}
	defer func(before int) {
		if l.crashes > before && l.r.IntN(3) == 0 {
			l.down = time.Now().Add(time.Duration(l.r.Int64N(int64(3 * time.Hour))))
			l.history = append(l.history, "  unreachable until "+l.down.Format("15:04:05"))
		}
	}(l.crashes)
	return l.trouble(call)
}

func (l *life) trouble(call func() error) error {
	if l.crashes >= 6 || l.r.IntN(8) > 0 {
		return call()
	}
	l.crashes++
	kind := trouble(l.r.IntN(int(troubles)))
	l.history = append(l.history, fmt.Sprint("  trouble ", kind))
	p := plan{at: map[int]trouble{0: kind}}
	return p.do("", call)
}

// cached returns the object as the cache has it: the newest version, or an older one.
func (l *life) cached() *corev1.ConfigMap {
	live := l.server.Objects["settings"]
	if n := len(l.past); n == 0 || l.past[n-1].ResourceVersion != live.ResourceVersion {
		l.past = append(l.past, live.DeepCopy())
	}
	n := len(l.past)
	if l.r.IntN(3) == 0 {
		return l.past[max(0, n-1-l.r.IntN(4))]
	}
	return l.past[n-1]
}

// pass calls Ensure, or Delete, as a controller does, and returns the time to the next call.
func (l *life) pass(t *testing.T) (state external.State, again time.Duration, err error) {
	defer func() {
		if r := recover(); r != nil {
			if r != any(errCrash) {
				panic(r)
			}
			state, again, err = "", time.Duration(l.r.Int64N(int64(10*time.Minute))), errCrash
		}
	}()
	obj := l.cached()
	defer func() {
		if obj.ResourceVersion != l.server.Objects["settings"].ResourceVersion {
			state = "" // what an old cache shows is not the end
		}
	}()
	r := l.machine(obj.Data["size"])
	if obj.DeletionTimestamp != nil || obj.Data["size"] == "" {
		wait, err := deleted(t.Context(), l.server, obj, r)
		if err == nil && wait == 0 {
			state = external.Gone
		}
		return state, wait, err
	}
	result, err := tryEnsure(t.Context(), l.server, obj, r)
	return result.State, result.RequeueAfter, err
}

// decide is a human, who does what the error for a key that may be forgotten asks for.
func (l *life) decide() {
	l.history = append(l.history, "  a human deletes the machine and removes the annotation")
	for _, m := range l.here() {
		m.deleted = true
	}
	obj := l.server.Objects["settings"].DeepCopy()
	delete(obj.Annotations, account)
	l.server.Put(obj)
	l.known = time.Now()
}

// settle runs the controller until it has nothing to do.
func (l *life) settle(t *testing.T, want external.State) string {
	backoff := time.Second
	for range 200 {
		state, again, err := l.pass(t)
		l.history = append(l.history, fmt.Sprint("  ", time.Now().Format("15:04:05"), " ", state, " ", again, " ", err))
		forgotten := isTerminal(err) && strings.Contains(err.Error(), "may have forgotten") && time.Since(l.known) > l.key*3/4
		if isTerminal(err) && !strings.Contains(err.Error(), "the object is being deleted") && !forgotten {
			return err.Error()
		}
		here := l.here()
		if len(here) > 1 {
			return fmt.Sprintf("%d machines", len(here))
		}
		if err == nil && state == want {
			l.known = time.Now()
			return ""
		}
		if forgotten {
			l.decide()
		}
		if err != nil && !apierrors.IsConflict(err) {
			again = max(again, backoff)
			backoff = min(2*backoff, 10*time.Minute)
		}
		time.Sleep(max(min(again, 20*time.Minute), time.Millisecond))
	}
	return "it never settles"
}

func (l *life) live(t *testing.T) string {
	l.history = append(l.history, "  a new object")
	for range 2 + l.r.IntN(4) {
		if diff := l.settle(t, external.Current); diff != "" {
			return diff
		}
		obj := l.server.Objects["settings"].DeepCopy()
		here := l.here()
		if len(here) != 1 || here[0].size != obj.Data["size"] || external.ID(obj, account) != here[0].id {
			return fmt.Sprintf("the object wants the size %s and has the id %s, the machines are %+v", obj.Data["size"], external.ID(obj, account), here)
		}
		switch l.r.IntN(5) {
		case 0:
			l.history = append(l.history, "  a user edits the size")
			obj.Data["size"] += "+"
			l.server.Put(obj)
		case 1:
			l.history = append(l.history, "  somebody edits the machine")
			here[0].size = "foreign"
		case 2:
			l.history = append(l.history, "  somebody deletes the machine")
			here[0].deleted = true
		case 3:
			if l.looks() {
				l.history = append(l.history, "  somebody edits the id")
				annotate(l.server, `{"token":%q,"id":"machine-0"}`, external.Token(obj, account))
			}
		case 4:
			l.history = append(l.history, "  a user turns it off and on")
			size := obj.Data["size"]
			obj.Data["size"] = ""
			l.server.Put(obj)
			if l.r.IntN(2) == 0 {
				if diff := l.settle(t, external.Gone); diff != "" {
					return diff
				}
				if len(l.here()) > 0 {
					return "the machine of an object that is off is here"
				}
			}
			obj = l.server.Objects["settings"].DeepCopy()
			obj.Data["size"] = size
			l.server.Put(obj)
		}
		time.Sleep(time.Duration(l.r.Int64N(int64(30 * time.Minute))))
	}
	for range l.r.IntN(6) { // the deletion comes at any time
		_, again, _ := l.pass(t)
		time.Sleep(min(again, time.Minute))
	}
	l.history = append(l.history, "  a user deletes the object")
	obj := l.server.Objects["settings"].DeepCopy()
	obj.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	l.server.Put(obj)
	l.past = append(l.past[:0], l.server.Objects["settings"]) // a Delete of the new version ends it
	if diff := l.settle(t, external.Gone); diff != "" {
		return diff
	}
	time.Sleep(3 * time.Hour)
	if here := l.here(); len(here) > 0 {
		return fmt.Sprintf("a machine is left: %+v", here[0])
	}
	return ""
}

// 90 objects with each kind of service live and die, their controllers crash, and their services are
// unreachable: no object ever has two machines, and none is left.
//
// Proves EX1, EX3 and EX4.
func TestLives(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	for _, kind := range machines() {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				crashes := 0
				for n := range *lives {
					s := *kind
					l := &life{service: &s, r: rand.New(rand.NewPCG(seed, uint64(n))), known: time.Now()}
					s.do = l.call
					l.server = fakeserver.New(fakeserver.Settings(func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"size": "small"} }))
					l.server.Do = func(_ string, call func() error) error { return l.trouble(call) }
					if diff := l.live(t); diff != "" {
						t.Fatalf("seed %d, object %d: %s\n%s", seed, n, diff, strings.Join(l.history, "\n"))
					}
					crashes += l.crashes
				}
				t.Logf("%d objects, %d troubles", *lives, crashes)
			})
		})
	}
}
