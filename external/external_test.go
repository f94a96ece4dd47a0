package external_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/fakeserver"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func isTerminal(err error) bool {
	var t controllerkit.TerminalError
	return errors.As(err, &t) && t.Terminal()
}

const account = "example.com/account"

// accounts is a controller's way to a service: the token is the name.
func accounts(c *cloud.Cloud, visible time.Duration) external.Resource {
	return external.Resource{
		Annotation:   account,
		VisibleAfter: visible,
		Find: func(ctx context.Context, token string) (string, bool, error) {
			list, err := c.List(ctx, token)
			if err != nil || len(list) == 0 {
				return "", false, err
			}
			if len(list) > 1 {
				return "", false, fmt.Errorf("%d accounts have the token %s", len(list), token)
			}
			return list[0].ID, true, nil
		},
		Create: func(ctx context.Context, token string) (string, error) {
			made, err := c.Create(ctx, cloud.Resource{Name: token, Token: token})
			if errors.Is(err, cloud.ErrExists) {
				return token, nil // only its token is its name, so it is ours
			}
			return made.ID, err
		},
	}
}

// services are the kinds that there are, and what each needs.
var services = []struct {
	name    string
	options cloud.Options
	visible time.Duration
}{
	{name: "knows tokens, reads lag", options: cloud.Options{Idempotent: true, HiddenReads: 2}},
	{name: "refuses names, reads lag", options: cloud.Options{ChosenIDs: true, HiddenReads: 2}},
	{name: "knows nothing", options: cloud.Options{}},
	{name: "knows nothing, reads lag", options: cloud.Options{HiddenReads: 1}, visible: time.Minute},
}

// trouble is what happens to one call, to the API server or to the service.
type trouble int

const (
	crashBefore trouble = iota // the process dies before the call is sent
	crashAfter                 // after it took effect
	lost                       // only the answer does not come
	dropped                    // an error, and nothing happened
	troubles
)

var errCrash = errors.New("crash")

// plan makes trouble at some calls, counted from 0.
type plan struct {
	at    map[int]trouble
	calls int
}

func (p *plan) do(_ string, call func() error) error {
	n, ok := p.at[p.calls]
	p.calls++
	switch {
	case !ok:
		return call()
	case n == crashBefore:
		panic(errCrash)
	case n == dropped:
		return io.ErrUnexpectedEOF
	}
	err := call()
	if n == crashAfter {
		panic(errCrash)
	}
	return errors.Join(io.ErrUnexpectedEOF, err)
}

// pass calls Once and survives its crash.
func pass(ctx context.Context, m *fakeserver.Server, obj *corev1.ConfigMap, e external.Resource) (id string, wait time.Duration, err error) {
	defer func() {
		if r := recover(); r != nil {
			if r != any(errCrash) {
				panic(r)
			}
			err = errCrash
		}
	}()
	return tryOnce(ctx, m, obj, e)
}

// TestOnceCrash proves EX1, with every pair of crashes, lost responses and failures
// at every two calls, on every kind of service, with caches that are up to date
// and that lag behind by one call, there is one account in the end, and there is an end.
func TestOnceCrash(t *testing.T) {
	t.Parallel()
	for _, service := range services {
		t.Run(service.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				runs, most := 0, 0
				for first := 0; first < 7; first++ {
					for second := first + 1; second < 14; second++ {
						for mode := trouble(0); mode < troubles*troubles; mode++ {
							for _, lag := range []bool{false, true} {
								p := &plan{at: map[int]trouble{first: mode % troubles, second: mode / troubles}}
								if diff := p.run(t, service.options, service.visible, lag); diff != "" {
									t.Errorf("trouble %v, lag %v: %s", p.at, lag, diff)
									return
								}
								runs, most = runs+1, max(most, p.calls)
							}
						}
					}
				}
				t.Logf("%d runs, at most %d calls", runs, most)
			})
		})
	}
}

// run is the life of one object under the plan, and says what is wrong with it.
func (p *plan) run(t *testing.T, options cloud.Options, visible time.Duration, lag bool) string {
	t.Helper()
	m := fakeserver.New(fakeserver.Settings())
	m.Do = p.do
	c := cloud.New(options)
	e := accounts(c.Through(func(ctx context.Context, name string, call func(context.Context) error) error {
		return p.do(name, func() error { return call(ctx) })
	}), visible)
	cached := m.Objects["settings"]
	for range 20 {
		next := m.Objects["settings"]
		if !lag {
			cached = next
		}
		id, wait, err := pass(t.Context(), m, cached, e)
		cached = next
		if id == "" && err == nil && wait <= 0 {
			return "nothing came out, and nothing would go on"
		}
		if id == "" {
			time.Sleep(wait)
			continue
		}
		if held := c.Resources(); len(held) != 1 || held[0].ID != id {
			return fmt.Sprintf("the id is %s, the service has %+v", id, held)
		}
		if creates, _ := c.Calls(); creates != 1 {
			return fmt.Sprintf("%d creates", creates)
		}
		before := p.calls
		again, _, err := pass(t.Context(), m, m.Objects["settings"], e)
		if again != id || err != nil || p.calls != before {
			return fmt.Sprintf("the next pass = %q, %v with %d calls; want %q with none", again, err, p.calls-before, id)
		}
		return ""
	}
	return "no id after 20 passes"
}

// TestOnceGuard proves EX2, Create is not called for a copy of an object
// that is not its newest version, whatever the copy says.
func TestOnceGuard(t *testing.T) {
	t.Parallel()
	obj := fakeserver.Settings()
	intent := func(cm *corev1.ConfigMap) {
		cm.Annotations = map[string]string{account: fmt.Sprintf(`{"token":%q,"since":"2020-01-01T00:00:00Z"}`, external.Token(obj, account))}
	}
	tests := []struct {
		name   string
		cached *corev1.ConfigMap
		live   *corev1.ConfigMap // nil if it is gone
		want   func(error) bool
	}{
		{name: "none recorded, changed", cached: fakeserver.Settings(), live: fakeserver.Settings(func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"a": "b"} }), want: apierrors.IsConflict},
		{name: "none recorded, replaced", cached: fakeserver.Settings(), live: fakeserver.Settings(func(cm *corev1.ConfigMap) { cm.UID = "uid-2" }), want: apierrors.IsConflict},
		{name: "none recorded, gone", cached: fakeserver.Settings(), want: apierrors.IsNotFound},
		{name: "recorded, changed", cached: fakeserver.Settings(intent), live: fakeserver.Settings(intent, func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"a": "b"} }), want: apierrors.IsConflict},
		{name: "recorded, deleted", cached: fakeserver.Settings(intent), live: fakeserver.Settings(intent, func(cm *corev1.ConfigMap) { cm.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), want: apierrors.IsConflict},
		{name: "recorded, replaced", cached: fakeserver.Settings(intent), live: fakeserver.Settings(intent, func(cm *corev1.ConfigMap) { cm.UID = "uid-2" }), want: apierrors.IsConflict},
		{name: "recorded, gone", cached: fakeserver.Settings(intent), want: apierrors.IsNotFound},
	}
	for _, tt := range tests {
		for _, visible := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprint(tt.name, " ", visible), func(t *testing.T) {
				t.Parallel()
				m := fakeserver.New()
				m.Version = 1 // the live one is version 2
				if tt.live != nil {
					m.Put(tt.live)
				}
				c := cloud.New(cloud.Options{})
				id, wait, err := tryOnce(t.Context(), m, tt.cached, accounts(c, visible))
				if id != "" || wait != 0 || !tt.want(err) {
					t.Errorf("Once() = %q, %+v, %v", id, wait, err)
				}
				if creates, _ := c.Calls(); creates != 0 || m.Writes != 0 {
					t.Errorf("%d creates and %d writes, want none", creates, m.Writes)
				}
			})
		}
	}
}

// What is in the annotation, and what follows from it.
func TestOnceAnnotation(t *testing.T) {
	t.Parallel()
	token := external.Token(fakeserver.Settings(), account)
	other := external.Token(fakeserver.Settings(func(cm *corev1.ConfigMap) { cm.UID = "uid-2" }), account)
	deleting := func(cm *corev1.ConfigMap) { cm.DeletionTimestamp = &metav1.Time{Time: time.Now()} }
	tests := []struct {
		name    string
		value   string // "" for none
		change  func(*corev1.ConfigMap)
		visible time.Duration
		mangle  func(*corev1.ConfigMap) *corev1.ConfigMap
		want    string // the id
		after   time.Duration
		wantErr string
		creates int
		writes  int
	}{
		{name: "none", want: "id-1", creates: 1, writes: 2},
		{name: "none, with VisibleAfter", visible: time.Minute, want: "id-1", creates: 1, writes: 2},
		{name: "id", value: `{"token":"` + token + `","id":"id-9"}`, want: "id-9"},
		{name: "id, deleting", value: `{"token":"` + token + `","id":"id-9"}`, change: deleting, want: "id-9"},
		{name: "none, deleting", change: deleting, wantErr: "the object is being deleted"},
		{name: "intent, deleting", value: `{"token":"` + token + `"}`, change: deleting, wantErr: "the object is being deleted"},
		{name: "copied from another object", value: `{"token":"` + other + `","id":"id-9"}`, want: "id-1", creates: 1, writes: 2},
		{name: "copied, with VisibleAfter", value: `{"token":"` + other + `","id":"id-9"}`, visible: time.Minute, want: "id-1", creates: 1, writes: 2},
		{name: "unreadable", value: "id-9", want: "id-1", creates: 1, writes: 2},
		{name: "id beside an unreadable time", value: `{"token":"` + token + `","id":"id-9","since":"x"}`, want: "id-1", creates: 1, writes: 2},
		{name: "unreadable, with VisibleAfter", value: "id-9", visible: time.Minute, after: time.Minute, writes: 1},
		{name: "without token, with VisibleAfter", value: `{"id":"id-9"}`, visible: time.Minute, after: time.Minute, writes: 1},
		{name: "intent just now, with VisibleAfter", value: `{"token":"` + token + `","since":"2000-01-01T00:00:00Z"}`, visible: time.Minute, after: time.Minute},
		{name: "intent from the future", value: `{"token":"` + token + `","since":"2100-01-01T00:00:00Z"}`, visible: time.Minute, after: time.Minute, writes: 1},
		{name: "intent, VisibleAfter is over", value: `{"token":"` + token + `","since":"1999-12-31T23:59:00Z"}`, visible: time.Minute, want: "id-1", creates: 1, writes: 2},
		{name: "unreadable, least VisibleAfter", value: "id-9", visible: 1, after: 1, writes: 1},
		{name: "intent just now, least VisibleAfter", value: `{"token":"` + token + `","since":"2000-01-01T00:00:00Z"}`, visible: 1, after: 1},
		{name: "intent, least VisibleAfter is over", value: `{"token":"` + token + `","since":"1999-12-31T23:59:00Z"}`, visible: 1, want: "id-1", creates: 1, writes: 2},
		{name: "intent, no VisibleAfter", value: `{"token":"` + token + `","since":"2000-01-01T00:00:00Z"}`, want: "id-1", creates: 1, writes: 1},
		{name: "webhook removes the intent", mangle: func(cm *corev1.ConfigMap) *corev1.ConfigMap { cm.Annotations = nil; return cm }, wantErr: "store the intent: the API server accepted the patch", writes: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // where it is 2000-01-01
				obj := fakeserver.Settings()
				obj.Annotations = map[string]string{"other": "stays"}
				if tt.value != "" {
					obj.Annotations[account] = tt.value
				}
				if tt.change != nil {
					tt.change(obj)
				}
				given := obj.DeepCopy()
				m := fakeserver.New(obj)
				m.Mangle = tt.mangle
				c := cloud.New(cloud.Options{})
				id, wait, err := tryOnce(t.Context(), m, obj, accounts(c, tt.visible))
				if id != tt.want || wait != tt.after {
					t.Errorf("Once() = %q, %v; want %q, %v", id, wait, tt.want, tt.after)
				}
				if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
					t.Errorf("error = %v, want %q", err, tt.wantErr)
				}
				if creates, _ := c.Calls(); creates != tt.creates || m.Writes != tt.writes {
					t.Errorf("%d creates and %d writes, want %d and %d", creates, m.Writes, tt.creates, tt.writes)
				}
				if live := m.Objects["settings"]; tt.mangle == nil && live.Annotations["other"] != "stays" {
					t.Errorf("annotations are %v: another one is lost", live.Annotations)
				}
				if fmt.Sprint(given) != fmt.Sprint(obj) {
					t.Errorf("the object given was changed to %v", obj)
				}
			})
		})
	}
}

func TestOnceMisuse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*external.Resource, *corev1.ConfigMap)
		want   string
	}{
		{name: "no annotation", change: func(e *external.Resource, _ *corev1.ConfigMap) { e.Annotation = "" }, want: "Resource.Annotation"},
		{name: "annotation with two slashes", change: func(e *external.Resource, _ *corev1.ConfigMap) { e.Annotation = "example.com/a/b" }, want: "Resource.Annotation"},
		{name: "no Find", change: func(e *external.Resource, _ *corev1.ConfigMap) { e.Find = nil }, want: "Resource.Find is nil"},
		{name: "no Create", change: func(e *external.Resource, _ *corev1.ConfigMap) { e.Create = nil }, want: "Resource.Create is nil"},
		{name: "negative", change: func(e *external.Resource, _ *corev1.ConfigMap) { e.VisibleAfter = -1 }, want: "Resource.VisibleAfter is -1ns"},
		{name: "no uid", change: func(_ *external.Resource, cm *corev1.ConfigMap) { cm.UID = "" }, want: "metadata.uid"},
		{name: "no version", change: func(_ *external.Resource, cm *corev1.ConfigMap) { cm.ResourceVersion = "" }, want: "metadata.resourceVersion"},
		{name: "empty id", change: func(e *external.Resource, _ *corev1.ConfigMap) {
			e.Create = func(context.Context, string) (string, error) { return "", nil }
		}, want: "returned is empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, obj := accounts(cloud.New(cloud.Options{}), 0), fakeserver.Settings()
			m := fakeserver.New(obj)
			tt.change(&e, obj)
			id, wait, err := tryOnce(t.Context(), m, obj, e)
			if id != "" || wait != 0 || !isTerminal(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Once() = %q, %v, %v; want a terminal error with %q", id, wait, err, tt.want)
			}
		})
	}
}

// A Create that fails, for ever if need be, costs no write after the first, which
// would be an event and so a retry without backoff.
func TestOnceFailingCreate(t *testing.T) {
	t.Parallel()
	m := fakeserver.New(fakeserver.Settings())
	quota := errors.New("quota exceeded")
	e := accounts(cloud.New(cloud.Options{}), 0)
	e.Create = func(context.Context, string) (string, error) { return "", quota }
	for i := range 10 {
		id, wait, err := tryOnce(t.Context(), m, m.Objects["settings"], e)
		if id != "" || wait != 0 || !errors.Is(err, quota) {
			t.Fatalf("pass %d: Once() = %q, %+v, %v; want %v", i, id, wait, err, quota)
		}
	}
	if m.Writes != 1 {
		t.Errorf("%d writes in 10 passes, want 1", m.Writes)
	}
}

// A Find that fails does not say that there is nothing, so Create is not called.
func TestOnceFailingFind(t *testing.T) {
	t.Parallel()
	m, c := fakeserver.New(fakeserver.Settings()), cloud.New(cloud.Options{})
	e := accounts(c, 0)
	e.Find = func(context.Context, string) (string, bool, error) { return "", false, io.ErrUnexpectedEOF }
	id, wait, err := tryOnce(t.Context(), m, m.Objects["settings"], e)
	if creates, _ := c.Calls(); id != "" || wait != 0 || !errors.Is(err, io.ErrUnexpectedEOF) || creates != 0 {
		t.Errorf("Once() = %q, %v, %v with %d creates; want %v and none", id, wait, err, creates, io.ErrUnexpectedEOF)
	}
}

// The token must not change with a new version of the library: it is what is looked for.
func TestToken(t *testing.T) {
	t.Parallel()
	const want = "8af6d6e86a52232345619c49734e859e"
	if got := external.Token(fakeserver.Settings(), account); got != want {
		t.Errorf("Token() = %s, want %s", got, want)
	}
	if got := external.Token(fakeserver.Settings(), "example.com/bucket"); got == want {
		t.Error("two annotations have one token")
	}
	if got := external.Token(fakeserver.Settings(func(cm *corev1.ConfigMap) { cm.UID = "uid-2" }), account); got == want {
		t.Error("two objects have one token")
	}
}

// TestServerOnce proves EX1 on the real server, with trouble at each
// call: requests to it through the faults of a process, calls to the service likewise.
func TestServerOnce(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	admin := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
	for first := range 6 {
		for mode := range troubles {
			for _, lag := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d-%d-%v", first, mode, lag), func(t *testing.T) {
					t.Parallel()
					obj, err := admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "settings-"}}, metav1.CreateOptions{})
					if err != nil {
						t.Fatal(err)
					}
					calls := 0
					// A crash is a lost answer, or a call that is not made, and a new process.
					at := func() fault.Fault {
						defer func() { calls++ }()
						if calls != first {
							return fault.Fault{}
						}
						return fault.Fault{Drop: mode == crashBefore || mode == dropped, Lose: mode == crashAfter || mode == lost}
					}
					c := cloud.New(cloud.Options{})
					cached := obj
					for range 8 {
						process, err := fault.New(testserver.Config(t), func(*fault.Op) fault.Fault { return at() }, nil)
						if err != nil {
							t.Fatal(err)
						}
						e := accounts(c.Through(func(ctx context.Context, _ string, call func(context.Context) error) error {
							return at().Call(ctx, process, call)
						}), 0)
						client := kubernetes.NewForConfigOrDie(process.Config()).CoreV1().ConfigMaps(namespace)
						id, _, err := tryOnce(t.Context(), client, cached, e)
						process.Kill()
						next, getErr := admin.Get(t.Context(), obj.Name, metav1.GetOptions{})
						if getErr != nil {
							t.Fatal(getErr)
						}
						if id == "" {
							if err == nil {
								t.Fatal("no id, no error")
							}
							if !lag {
								cached = next
							}
							lag = false // the cache catches up
							continue
						}
						if held := c.Resources(); len(held) != 1 || held[0].ID != id {
							t.Errorf("the id is %s, the service has %+v", id, held)
						}
						var stored struct{ ID string }
						if err := json.Unmarshal([]byte(next.Annotations[account]), &stored); err != nil || stored.ID != id {
							t.Errorf("annotations are %v (%v), want the id %s in them", next.Annotations, err, id)
						}
						if again, _, err := tryOnce(t.Context(), client, next, e); again != id || err != nil {
							t.Errorf("the next pass = %q, %v; want %q without a request", again, err, id)
						}
						return
					}
					t.Error("no id after 8 passes")
				})
			}
		}
	}
}

// TestServerOnceTwoProcesses proves EX1 for two processes that are both alive,
// as an old leader and its successor are for a while, with a service that knows no
// tokens: VisibleAfter keeps them apart. What they read of the object may be old.
func TestServerOnceTwoProcesses(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	config := rest.CopyConfig(testserver.Config(t))
	config.QPS = -1
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(namespace)
	c := cloud.New(cloud.Options{})
	const objects, visible = 40, 10 * time.Second
	e := accounts(c.Through(func(ctx context.Context, what string, call func(context.Context) error) error {
		if strings.HasPrefix(what, "create ") {
			<-time.After(rand.N(100 * time.Millisecond)) // until the service has it
		}
		return call(ctx)
	}), visible)
	var processes sync.WaitGroup
	for n := range objects {
		obj, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("settings-", n)}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			processes.Go(func() {
				cached := obj
				for {
					id, wait, err := tryOnce(t.Context(), client, cached, e)
					if id != "" {
						return
					}
					if err != nil && !apierrors.IsConflict(err) {
						t.Error(err)
						return
					}
					<-time.After(wait + rand.N(20*time.Millisecond))
					if next, err := client.Get(t.Context(), obj.Name, metav1.GetOptions{}); err != nil {
						t.Error(err)
						return
					} else if rand.N(3) > 0 {
						cached = next // else it is old once more
					}
				}
			})
		}
	}
	processes.Wait()
	tokens := map[string]int{}
	for _, made := range c.Resources() {
		if tokens[made.Token]++; tokens[made.Token] > 1 {
			t.Errorf("%d accounts with the token %s", tokens[made.Token], made.Token)
		}
	}
	if len(tokens) != objects {
		t.Errorf("accounts of %d objects, want %d", len(tokens), objects)
	}
}

// FuzzOnce has anything in the annotation: there is one account in the end.
func FuzzOnce(f *testing.F) {
	token := external.Token(fakeserver.Settings(), account)
	for _, seed := range []string{"", "{", "null", "[]", `{"token":""}`, `{"token":"` + token + `"}`, `{"token":"` + token + `","since":"9999-12-31T23:59:59Z"}`, `{"token":"` + token + `","since":"x"}`, `{"token":"x","id":"id-9"}`} {
		f.Add(seed, int64(0))
		f.Add(seed, int64(time.Minute))
	}
	f.Fuzz(func(t *testing.T, value string, visible int64) {
		if visible < 0 || visible > int64(time.Hour) {
			t.Skip()
		}
		synctest.Test(t, func(t *testing.T) {
			m := fakeserver.New(fakeserver.Settings(func(cm *corev1.ConfigMap) { cm.Annotations = map[string]string{account: value} }))
			c := cloud.New(cloud.Options{})
			e := accounts(c, time.Duration(visible))
			for range 3 {
				id, wait, err := tryOnce(t.Context(), m, m.Objects["settings"], e)
				if err != nil {
					t.Fatalf("Once() with %q = %v", value, err)
				}
				if id != "" {
					var stored struct{ Token, ID string }
					if creates, _ := c.Calls(); creates != 1 && (json.Unmarshal([]byte(value), &stored) != nil || stored.ID != id) {
						t.Fatalf("%q: the id is %s after %d creates", value, id, creates)
					}
					return
				}
				time.Sleep(wait)
			}
			t.Fatalf("%q: no id after 3 passes", value)
		})
	})
}

func BenchmarkOnce(b *testing.B) {
	m := fakeserver.New(fakeserver.Settings())
	e := accounts(cloud.New(cloud.Options{}), 0)
	if _, _, err := tryOnce(b.Context(), m, m.Objects["settings"], e); err != nil {
		b.Fatal(err)
	}
	obj := m.Objects["settings"]
	b.ReportAllocs()
	for b.Loop() {
		if id, _, err := tryOnce(b.Context(), m, obj, e); id == "" || err != nil {
			b.Fatal(id, err)
		}
	}
}
