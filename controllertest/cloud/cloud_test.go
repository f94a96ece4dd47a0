package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served returns a handle on c in another process, so to speak.
func served(t testing.TB, c *cloud.Cloud) *cloud.Cloud {
	t.Helper()
	s := httptest.NewUnstartedServer(cloud.Handler(c))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	return cloud.Connect(s.URL)
}

// handles are the ways to reach a service.
func handles(t *testing.T, options cloud.Options, test func(t *testing.T, service, c *cloud.Cloud)) {
	t.Helper()
	t.Run("local", func(t *testing.T) {
		service := cloud.New(options)
		test(t, service, service)
	})
	t.Run("remote", func(t *testing.T) {
		service := cloud.New(options)
		test(t, service, served(t, service))
	})
}

func names(resources []cloud.Resource) []string {
	all := []string{}
	for _, r := range resources {
		all = append(all, r.ID+"="+r.Name)
	}
	return all
}

func create(t *testing.T, c *cloud.Cloud, r cloud.Resource) cloud.Resource {
	t.Helper()
	made, err := c.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestIDs(t *testing.T) {
	t.Run("generated", func(t *testing.T) {
		handles(t, cloud.Options{}, func(t *testing.T, service, c *cloud.Cloud) {
			for range 2 {
				create(t, c, cloud.Resource{ID: "mine", Name: "a", Token: "t"}) // tokens have no effect
			}
			create(t, c, cloud.Resource{})
			if diff := cmp.Diff([]string{"id-1=a", "id-2=a", "id-3="}, names(service.Resources())); diff != "" {
				t.Errorf("the service holds (-want +got):\n%s", diff)
			}
			if err := c.Delete(t.Context(), "id-2"); err != nil {
				t.Error(err)
			}
			if made := create(t, c, cloud.Resource{Name: "a"}); made.ID != "id-4" {
				t.Errorf("an id is used again: %s", made.ID)
			}
		})
	})
	t.Run("chosen", func(t *testing.T) {
		handles(t, cloud.Options{ChosenIDs: true}, func(t *testing.T, service, c *cloud.Cloud) {
			if made := create(t, c, cloud.Resource{Name: "a"}); made.ID != "a" {
				t.Errorf("the id is %q", made.ID)
			}
			if _, err := c.Create(t.Context(), cloud.Resource{Name: "a", Token: "other"}); !errors.Is(err, cloud.ErrExists) || !strings.Contains(err.Error(), `"a"`) {
				t.Errorf("the second create: %v", err)
			}
			if _, err := c.Create(t.Context(), cloud.Resource{}); err == nil || !strings.Contains(err.Error(), "Name is empty") {
				t.Errorf("a create without a name: %v", err)
			}
			if err := c.Delete(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			create(t, c, cloud.Resource{Name: "a"})
			if creates, deletes := service.Calls(); creates != 2 || deletes != 1 {
				t.Errorf("%d creates and %d deletes", creates, deletes)
			}
		})
	})
}

func TestIdempotent(t *testing.T) {
	for _, chosen := range []bool{false, true} {
		t.Run(fmt.Sprintf("chosen %t", chosen), func(t *testing.T) {
			handles(t, cloud.Options{Idempotent: true, ChosenIDs: chosen, HiddenReads: 1}, func(t *testing.T, service, c *cloud.Cloud) {
				create(t, c, cloud.Resource{Name: "other", Token: "x"})
				first := create(t, c, cloud.Resource{Name: "a", Token: "t", Tags: map[string]string{"k": "1"}})
				again := create(t, c, cloud.Resource{Name: "a", Token: "t", Tags: map[string]string{"k": "2"}})
				if diff := cmp.Diff(first, again); diff != "" {
					t.Errorf("the second create with the token made (-first +second):\n%s", diff)
				}
				if made, err := c.Create(t.Context(), cloud.Resource{Name: "other", Token: "t"}); err != nil || made.ID != first.ID {
					t.Errorf("a token counts more than a name, but: %+v %v", made, err)
				}
				if creates, _ := service.Calls(); creates != 2 || len(service.Resources()) != 2 {
					t.Errorf("%d creates, %v", creates, names(service.Resources()))
				}
				if err := c.Delete(t.Context(), first.ID); err != nil {
					t.Error(err)
				}
				create(t, c, cloud.Resource{Name: "a", Token: "t"})
				if creates, _ := service.Calls(); creates != 3 {
					t.Errorf("%d creates: the token of a deleted resource must not count", creates)
				}
			})
		})
	}
	t.Run("without a token", func(t *testing.T) {
		c := cloud.New(cloud.Options{Idempotent: true})
		create(t, c, cloud.Resource{Name: "a"})
		create(t, c, cloud.Resource{Name: "a"})
		if n := len(c.Resources()); n != 2 {
			t.Errorf("%d resources", n)
		}
	})
}

func TestHiddenReads(t *testing.T) {
	handles(t, cloud.Options{HiddenReads: 2}, func(t *testing.T, service, c *cloud.Cloud) {
		made := create(t, c, cloud.Resource{Name: "a"})
		if found, err := c.List(t.Context(), "other"); err != nil || len(found) > 0 { // is about something else
			t.Errorf("%v %v", found, err)
		}
		if n := len(service.Resources()); n != 1 {
			t.Errorf("Resources shows %d", n)
		}
		if _, err := c.Get(t.Context(), made.ID); !errors.Is(err, cloud.ErrNotFound) {
			t.Errorf("the first read: %v", err)
		}
		if found, err := c.List(t.Context(), ""); err != nil || len(found) > 0 {
			t.Errorf("the second read: %v %v", found, err)
		}
		if found, err := c.List(t.Context(), "a"); err != nil || len(found) != 1 {
			t.Errorf("the third read: %v %v", found, err)
		}
		if found, err := c.Get(t.Context(), made.ID); err != nil || found.ID != made.ID {
			t.Errorf("the fourth read: %v %v", found, err)
		}
		made = create(t, c, cloud.Resource{Name: "b"})
		if err := c.Update(t.Context(), made.ID, map[string]string{"k": "v"}); err != nil {
			t.Errorf("an update of what is hidden: %v", err)
		}
		if err := c.Delete(t.Context(), made.ID); err != nil {
			t.Errorf("a delete of what is hidden: %v", err)
		}
	})
}

func TestNotFound(t *testing.T) {
	handles(t, cloud.Options{}, func(t *testing.T, _, c *cloud.Cloud) {
		_, err := c.Get(t.Context(), "x")
		for name, err := range map[string]error{
			"get": err, "update": c.Update(t.Context(), "x", nil), "delete": c.Delete(t.Context(), "x"),
		} {
			if !errors.Is(err, cloud.ErrNotFound) || errors.Is(err, cloud.ErrExists) || !strings.Contains(err.Error(), name+` "x"`) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestCopies holds that nobody has the service's own maps.
func TestCopies(t *testing.T) {
	c := cloud.New(cloud.Options{})
	tags := map[string]string{"k": "1"}
	made := create(t, c, cloud.Resource{Name: "a", Tags: tags})
	change := func(m map[string]string) { m["k"] = "changed" }
	change(tags)
	change(made.Tags)
	change(c.Resources()[0].Tags)
	got, err := c.Get(t.Context(), made.ID)
	if err != nil || got.Tags["k"] != "1" {
		t.Errorf("%v %v", got, err)
	}
	change(got.Tags)
	listed, err := c.List(t.Context(), "")
	if err != nil || listed[0].Tags["k"] != "1" {
		t.Errorf("%v %v", listed, err)
	}
	change(listed[0].Tags)
	if err := c.Update(t.Context(), made.ID, tags); err != nil {
		t.Fatal(err)
	}
	tags["k"] = "again"
	if got := c.Resources()[0].Tags["k"]; got != "changed" {
		t.Errorf("the tag is %q", got)
	}
}

// TestThrough holds what the function of a handle is told, and that it decides,
// at either end of a connection.
func TestThrough(t *testing.T) {
	handles(t, cloud.Options{}, func(t *testing.T, service, c *cloud.Cloud) {
		failed := errors.New("failed")
		var told []string
		var refuse, lose bool
		h := c.Through(func(ctx context.Context, name string, call func(context.Context) error) error {
			told = append(told, name)
			if refuse {
				return failed
			}
			err := call(ctx)
			if lose {
				return failed
			}
			return err
		})
		made := create(t, h, cloud.Resource{Name: "a"})
		if _, err := h.Get(t.Context(), made.ID); err != nil {
			t.Error(err)
		}
		if found, err := h.List(t.Context(), "a"); err != nil || len(found) != 1 {
			t.Errorf("%v %v", found, err)
		}
		if err := h.Update(t.Context(), made.ID, map[string]string{"k": "v"}); err != nil {
			t.Error(err)
		}
		refuse = true
		if err := h.Delete(t.Context(), made.ID); !errors.Is(err, failed) {
			t.Errorf("a refused delete: %v", err)
		}
		if n := len(service.Resources()); n != 1 {
			t.Errorf("a refused delete has happened")
		}
		refuse, lose = false, true
		if err := h.Delete(t.Context(), made.ID); !errors.Is(err, failed) {
			t.Errorf("a lost delete: %v", err)
		}
		if n := len(service.Resources()); n != 0 {
			t.Errorf("a lost delete has not happened")
		}
		about := "a"
		if c != service {
			about = "id-" // only the service knows the names
		}
		last := "id-"
		_ = h.Delete(t.Context(), made.ID)
		want := []string{"create a", "get " + about, "list a", "update " + about, "delete " + about, "delete " + about, "delete " + last}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		told = nil
		other := h.Through(func(ctx context.Context, _ string, call func(context.Context) error) error { return call(ctx) })
		create(t, other, cloud.Resource{Name: "b"})
		create(t, c, cloud.Resource{Name: "c"})
		if len(told) > 0 {
			t.Errorf("a handle is told of calls that are not its own: %v", told)
		}
	})
}

// A call whose response is lost returns no resource.
func TestLost(t *testing.T) {
	handles(t, cloud.Options{}, func(t *testing.T, service, c *cloud.Cloud) {
		lost := errors.New("connection reset")
		lossy := c.Through(func(ctx context.Context, _ string, call func(context.Context) error) error {
			if err := call(ctx); err != nil {
				t.Errorf("call = %v", err)
			}
			return lost
		})
		if made, err := lossy.Create(t.Context(), cloud.Resource{Name: "a"}); !errors.Is(err, lost) || !cmp.Equal(made, cloud.Resource{}) {
			t.Errorf("Create = %v, %v, want only the error", made, err)
		}
		if found, err := lossy.Get(t.Context(), "id-1"); !errors.Is(err, lost) || !cmp.Equal(found, cloud.Resource{}) {
			t.Errorf("Get = %v, %v, want only the error", found, err)
		}
		if found, err := lossy.List(t.Context(), ""); !errors.Is(err, lost) || found != nil {
			t.Errorf("List = %v, %v, want only the error", found, err)
		}
		if all, err := service.List(t.Context(), "a"); err != nil || len(all) != 1 {
			t.Errorf("the service has %v, %v, want the created resource", all, err)
		}
	})
}

// TestContext holds that a call whose context is done does not happen.
func TestContext(t *testing.T) {
	handles(t, cloud.Options{}, func(t *testing.T, service, c *cloud.Cloud) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Create(ctx, cloud.Resource{Name: "a"}); !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
		if n := len(service.Resources()); n != 0 {
			t.Error("it has happened")
		}
	})
}

// TestAborted holds that what a fault does to a call at the service's end is an
// error at the client's, that the call was made or not as the fault says, and that
// it was not made again.
//
// Proves E2.
func TestAborted(t *testing.T) {
	fault := errors.New("connection reset by peer")
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %t", lost), func(t *testing.T) {
			service := cloud.New(cloud.Options{})
			var calls atomic.Int32
			c := served(t, service.Through(func(ctx context.Context, _ string, call func(context.Context) error) error {
				calls.Add(1)
				if lost {
					_ = call(ctx)
				}
				return fault
			}))
			_, err := c.Create(t.Context(), cloud.Resource{Name: "a"})
			if err == nil || errors.Is(err, cloud.ErrNotFound) || errors.Is(err, cloud.ErrExists) {
				t.Errorf("the client got %v", err)
			}
			if _, err := c.List(t.Context(), ""); err == nil {
				t.Error("the list has no error")
			}
			if made := len(service.Resources()) == 1; made != lost {
				t.Errorf("it was made: %t", made)
			}
			if n := calls.Load(); n != 2 {
				t.Errorf("%d calls, want 2", n)
			}
		})
	}
}

// TestConnect proves E2.
func TestConnect(t *testing.T) {
	c := served(t, cloud.New(cloud.Options{}))
	create(t, c, cloud.Resource{Name: "a"})
	if got := c.Resources(); got != nil {
		t.Errorf("Resources: %v", got)
	}
	if creates, deletes := c.Calls(); creates != 0 || deletes != 0 {
		t.Errorf("Calls: %d, %d", creates, deletes)
	}
	if _, err := cloud.Connect("http://%").List(t.Context(), ""); err == nil {
		t.Error("a bad URL has no error")
	}
	if _, err := cloud.Connect("http://127.0.0.1:1").List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "cloud: list: ") {
		t.Errorf("nobody is there: %v", err)
	}
	something := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "go away", http.StatusTeapot) }))
	defer something.Close()
	if _, err := cloud.Connect(something.URL).List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "go away") {
		t.Errorf("something else is there: %v", err)
	}
}

// TestHandlerBadRequests holds that what is no call is refused, and does nothing.
func TestHandlerBadRequests(t *testing.T) {
	service := cloud.New(cloud.Options{})
	create(t, service, cloud.Resource{Name: "a"})
	for _, body := range []string{"", "{", `{"Call":"explode"}`, `{"Call":"create","Resource":7}`, `{"Call":"create","Resource":{"Name":"` + strings.Repeat("x", 2<<20) + `"}}`} {
		w := httptest.NewRecorder()
		cloud.Handler(service).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%.40q is answered with %d", body, w.Code)
		}
	}
	if got := names(service.Resources()); !slices.Equal(got, []string{"id-1=a"}) {
		t.Errorf("the service holds %v", got)
	}
}

// TestOneAfterTheOther holds that calls which are made at once count once each.
//
// Proves E1.
func TestOneAfterTheOther(t *testing.T) {
	c := cloud.New(cloud.Options{Idempotent: true})
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for m := range 50 {
				r, err := c.Create(context.Background(), cloud.Resource{Token: fmt.Sprint(m)})
				if err == nil && n == 0 && m%2 == 0 {
					_, _ = c.Get(context.Background(), r.ID)
					_, _ = c.List(context.Background(), "")
					_ = c.Update(context.Background(), r.ID, map[string]string{"n": fmt.Sprint(n)})
				}
			}
		})
	}
	wg.Wait()
	if creates, _ := c.Calls(); creates != 50 || len(c.Resources()) != 50 {
		t.Errorf("%d creates, %d resources, want 50", creates, len(c.Resources()))
	}
}

// model is the service in the fewest words.
type model struct {
	options cloud.Options
	held    []cloud.Resource
	hidden  map[string]int
	last    int
}

func (m *model) create(r cloud.Resource) (string, error) {
	for _, h := range m.held {
		if m.options.Idempotent && r.Token != "" && r.Token == h.Token {
			return h.ID, nil
		}
	}
	for _, h := range m.held {
		if m.options.ChosenIDs && r.Name == h.Name {
			return "", cloud.ErrExists
		}
	}
	if r.ID = r.Name; !m.options.ChosenIDs {
		m.last++
		r.ID = fmt.Sprint("id-", m.last)
	}
	m.held = append(m.held, r)
	m.hidden[r.ID] = m.options.HiddenReads
	return r.ID, nil
}

// shown counts a read of those that match.
func (m *model) shown(match func(cloud.Resource) bool) []cloud.Resource {
	var found []cloud.Resource
	for _, h := range m.held {
		switch {
		case !match(h):
		case m.hidden[h.ID] > 0:
			m.hidden[h.ID]--
		default:
			found = append(found, h)
		}
	}
	return found
}

// TestModel holds that any sequence of calls does what the model does.
//
// Proves E1.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{hidden: map[string]int{}, options: cloud.Options{
			Idempotent:  rapid.Bool().Draw(rt, "idempotent"),
			ChosenIDs:   rapid.Bool().Draw(rt, "chosen"),
			HiddenReads: rapid.IntRange(0, 2).Draw(rt, "hidden"),
		}}
		c := cloud.New(m.options)
		ctx := context.Background()
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		id := rapid.SampledFrom([]string{"a", "b", "id-1", "id-2", "id-3", "none"})
		with := func(wanted string) func(cloud.Resource) bool {
			return func(r cloud.Resource) bool { return r.ID == wanted }
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(rt *rapid.T) {
				r := cloud.Resource{ID: "ignored", Name: name.Draw(rt, "name"), Token: rapid.SampledFrom([]string{"", "s", "t"}).Draw(rt, "token"), Tags: map[string]string{"by": "create"}}
				want, wantErr := m.create(r)
				got, err := c.Create(ctx, r)
				if got.ID != want || !errors.Is(err, wantErr) {
					rt.Fatalf("create %+v: %q %v, want %q %v", r, got.ID, err, want, wantErr)
				}
			},
			"get": func(rt *rapid.T) {
				wanted := id.Draw(rt, "id")
				want := m.shown(with(wanted))
				got, err := c.Get(ctx, wanted)
				if (err == nil) != (len(want) == 1) || err == nil && !cmp.Equal(got, want[0]) {
					rt.Fatalf("get %s: %+v %v, want %+v", wanted, got, err, want)
				}
			},
			"list": func(rt *rapid.T) {
				wanted := rapid.OneOf(name, rapid.Just("")).Draw(rt, "name")
				want := m.shown(func(r cloud.Resource) bool { return wanted == "" || r.Name == wanted })
				if got, err := c.List(ctx, wanted); err != nil || !cmp.Equal(got, want) {
					rt.Fatalf("list %q: %+v %v, want %+v", wanted, got, err, want)
				}
			},
			"update": func(rt *rapid.T) {
				wanted, tags := id.Draw(rt, "id"), map[string]string{"by": rapid.String().Draw(rt, "tag")}
				i := slices.IndexFunc(m.held, with(wanted))
				if i >= 0 {
					m.held[i].Tags = tags
				}
				if err := c.Update(ctx, wanted, tags); (err == nil) != (i >= 0) {
					rt.Fatalf("update %s: %v", wanted, err)
				}
			},
			"delete": func(rt *rapid.T) {
				wanted := id.Draw(rt, "id")
				i := slices.IndexFunc(m.held, with(wanted))
				if i >= 0 {
					m.held = slices.Delete(m.held, i, i+1)
				}
				if err := c.Delete(ctx, wanted); (err == nil) != (i >= 0) {
					rt.Fatalf("delete %s: %v", wanted, err)
				}
			},
			"": func(rt *rapid.T) {
				got := c.Resources()
				for n, h := range m.held {
					if n >= len(got) || got[n].ID != h.ID {
						rt.Fatalf("it holds %v, want %v", names(got), names(m.held))
					}
				}
				if len(got) != len(m.held) {
					rt.Fatalf("it holds %v, want %v", names(got), names(m.held))
				}
			},
		})
	})
}
