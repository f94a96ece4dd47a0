package finalizer_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// The proof at full size: go test -race -run '^TestServerRandom$' ./finalizer -steps 10000
var randomSteps = flag.Int("steps", 900, "how many random steps TestServerRandom takes")

// coded counts the patches that did not apply and the writes that were stale.
type coded struct {
	http.RoundTripper
	invalid, conflict *atomic.Int64
}

func (c coded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		switch response.StatusCode {
		case http.StatusUnprocessableEntity:
			c.invalid.Add(1)
		case http.StatusConflict:
			if r.Method != http.MethodPost { // that would be a name that is taken
				c.conflict.Add(1)
			}
		}
	}
	return response, err
}

// album holds old copies of the objects, from which all actors work.
type album struct {
	mu     sync.Mutex
	copies map[string][]*corev1.ConfigMap // by name, the latest last
}

const albumPages = 6 // old copies kept of each object

func (a *album) add(obj *corev1.ConfigMap) {
	a.mu.Lock()
	defer a.mu.Unlock()
	copies := append(a.copies[obj.Name], obj)
	a.copies[obj.Name] = copies[max(0, len(copies)-albumPages):]
}

// pick returns a copy of any age, the latest in half of the cases, or nil.
func (a *album) pick(name string, random *rand.Rand) *corev1.ConfigMap {
	a.mu.Lock()
	defer a.mu.Unlock()
	copies := a.copies[name]
	switch {
	case len(copies) == 0:
		return nil
	case random.IntN(2) == 0:
		return copies[len(copies)-1]
	}
	return copies[random.IntN(len(copies))]
}

// actor owns one finalizer: nobody else may add or remove it. It knows from what
// it was told which objects carry it.
type actor struct {
	typedcorev1.ConfigMapInterface
	finalizer string
	random    *rand.Rand
	album     *album
	has       map[types.UID]bool
	gone      map[string]bool // by name, when last looked
	adds      int
}

// check reads the object and compares it with what the actor was told. Whoever
// else is at work at the moment, that must be the truth.
func (a *actor) check(ctx context.Context, name string, uid types.UID) error {
	live, err := a.Get(ctx, name, metav1.GetOptions{})
	if a.gone[name] = apierrors.IsNotFound(err); a.gone[name] {
		live, err = &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return err
	}
	if live.UID != "" {
		a.album.add(live)
	}
	for _, id := range []types.UID{uid, live.UID} {
		stored := id == live.UID && finalizer.Has(live, a.finalizer)
		if id != "" && stored != a.has[id] {
			return fmt.Errorf("%s: on %s %s it is stored: %v, told: %v; the server has uid %q with %q", a.finalizer, name, id, stored, a.has[id], live.UID, live.Finalizers)
		}
	}
	return nil
}

// control is one step of a controller, with a copy of any age.
func (a *actor) control(ctx context.Context, name string) error {
	obj := a.album.pick(name, a.random)
	if obj == nil {
		return a.check(ctx, name, "")
	}
	before := obj.DeepCopy()
	if a.random.IntN(4) > 0 {
		cleaned := false
		h, live, err := finalizer.Ensure(ctx, a, obj, a.finalizer, func(context.Context, held) error {
			cleaned = true
			return nil
		})
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		case err != nil:
			return err
		case live && h.Object() != obj: // added just now
			a.has[obj.UID] = true
			a.adds++
		case cleaned:
			delete(a.has, obj.UID)
		}
	} else {
		_, err := finalizer.Remove(ctx, a, obj, a.finalizer)
		switch {
		case apierrors.IsConflict(err):
		case err != nil:
			return err
		case finalizer.Has(obj, a.finalizer):
			delete(a.has, obj.UID)
		}
	}
	if !slices.Equal(before.Finalizers, obj.Finalizers) {
		return fmt.Errorf("the copy's finalizers %q became %q", before.Finalizers, obj.Finalizers)
	}
	return a.check(ctx, name, obj.UID)
}

// use is one step of a user: creates, edits the whole object, deletes it.
func (a *actor) use(ctx context.Context, name string) error {
	obj := a.album.pick(name, a.random)
	if obj == nil || a.gone[name] || a.random.IntN(20) == 0 {
		created, err := a.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{a.finalizer}}}, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err):
			return a.check(ctx, name, "")
		case err != nil:
			return err
		}
		a.has[created.UID] = true
		a.adds++
		return a.check(ctx, name, created.UID)
	}
	if a.random.IntN(10) == 0 {
		err := finalizer.Delete(ctx, a, obj, metav1.DeletePropagationBackground)
		if err != nil && !apierrors.IsConflict(err) {
			return err
		}
		return a.check(ctx, name, obj.UID)
	}
	edited := obj.DeepCopy()
	edited.Data = map[string]string{"edit": fmt.Sprint(a.random.Int())}
	at := slices.Index(edited.Finalizers, a.finalizer)
	adds := at < 0 && obj.DeletionTimestamp == nil
	switch {
	case adds:
		edited.Finalizers = slices.Insert(edited.Finalizers, a.random.IntN(len(edited.Finalizers)+1), a.finalizer)
	case at >= 0:
		edited.Finalizers = slices.Delete(edited.Finalizers, at, at+1)
	}
	_, err := a.Update(ctx, edited, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
	case err != nil:
		return err
	case adds:
		a.has[obj.UID] = true
		a.adds++
	default:
		delete(a.has, obj.UID)
	}
	return a.check(ctx, name, obj.UID)
}

// Two controllers and a user work on a few objects at once, each with copies of any
// age. After each step each of them finds its own finalizer exactly where it was
// told that it is; and the watch shows as many additions as were made, so nothing
// came back in between.
//
// Proves F2, F3, F6.
func TestServerRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var invalid, conflict atomic.Int64
	namespace := testserver.Namespace(t)
	client := func(config *rest.Config) typedcorev1.ConfigMapInterface {
		c, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return c.CoreV1().ConfigMaps(namespace)
	}
	config := testserver.Config(t)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return coded{RoundTripper: rt, invalid: &invalid, conflict: &conflict}
	})
	observer := client(testserver.Config(t))
	list, err := observer.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := observer.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	appeared := make(chan map[string]int)
	go func() {
		defer close(appeared)
		n := map[string]int{}
		last := map[types.UID][]string{}
		for event := range w.ResultChan() {
			obj, ok := event.Object.(*corev1.ConfigMap)
			if !ok {
				t.Errorf("watch: %v", event.Object)
				return
			}
			if obj.Name == "end" {
				appeared <- n
				return
			}
			if event.Type == watch.Deleted {
				continue
			}
			for _, f := range obj.Finalizers {
				if !slices.Contains(last[obj.UID], f) {
					n[f]++
				}
			}
			last[obj.UID] = obj.Finalizers
		}
	}()

	names := []string{"one", "two"}
	shared := &album{copies: map[string][]*corev1.ConfigMap{}}
	var actors []*actor
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, f := range []string{"a.example.com/f", "b.example.com/f", "user.example.com/f"} {
		a := &actor{
			ConfigMapInterface: client(config), finalizer: f, random: rand.New(rand.NewPCG(seed, uint64(i))),
			album: shared, has: map[types.UID]bool{}, gone: map[string]bool{},
		}
		actors = append(actors, a)
		do := a.control
		if i == 2 {
			do = a.use
		}
		wg.Go(func() {
			for n := range *randomSteps / 3 {
				if err := do(ctx, names[a.random.IntN(len(names))]); err != nil {
					if ctx.Err() == nil {
						t.Errorf("step %d of %s: %v", n, a.finalizer, err)
					}
					cancel()
					return
				}
			}
		})
	}
	wg.Wait()

	// Everybody leaves, with the newest copies, and nothing remains.
	for _, name := range names {
		live, err := observer.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := finalizer.Delete(t.Context(), observer, live, metav1.DeletePropagationBackground); err != nil {
			t.Fatal(err)
		}
		for _, a := range actors {
			if finalizer.Has(live, a.finalizer) {
				if _, err := finalizer.Remove(t.Context(), observer, live, a.finalizer); err != nil {
					t.Fatal(err)
				}
			}
		}
		if live, err := observer.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s remains with %q: %v", name, live.Finalizers, err)
		}
	}
	if _, err := observer.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "end"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	seen := <-appeared
	w.Stop()
	total := 0
	for _, a := range actors {
		total += a.adds
		if seen[a.finalizer] != a.adds {
			t.Errorf("%s was added %d times, and the watch saw it appear %d times", a.finalizer, a.adds, seen[a.finalizer])
		}
	}
	t.Logf("%d steps: %d finalizers added, %d answers 422, %d answers 409", *randomSteps, total, invalid.Load(), conflict.Load())
	if least := int64(*randomSteps / 20); !t.Failed() && (invalid.Load() < least || conflict.Load() < least) {
		t.Errorf("%d answers 422 and %d answers 409, want at least %d of each", invalid.Load(), conflict.Load(), least)
	}
}
