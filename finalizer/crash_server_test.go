package finalizer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// A bystander's finalizers, which must survive everything.
const (
	keep      = "keep.example.com/f"   // on the object, in front of ours
	leaves    = "leaves.example.com/f" // on the object too, until the cleanup is over
	keepChild = "keep.example.com/c"   // on a child, until the user takes it off
)

// cloud is what lives outside of the cluster. A process that has died cannot reach
// it any more either.
type cloud struct {
	mu      sync.Mutex
	buckets map[types.UID]bool
}

// worker is a process that works on the object "one": it makes two children and a
// bucket, and cleans both up.
type worker struct {
	typedcorev1.ConfigMapInterface
	cloud *cloud
	admin typedcorev1.ConfigMapInterface // for looking at the truth
	write func() error                   // called before each write to the cloud, and after it
	bad   []string                       // invariants that were broken
}

func (l *worker) plan() finalizer.Plan[*corev1.ConfigMap] {
	return plan{
		Client: l,
		Steps: []step{
			{Name: "children", Run: func(ctx context.Context, h held) (progress, error) {
				mine := func(child metav1.Object) bool { return metav1.IsControlledBy(child, h.Object()) }
				return finalizer.DeleteAll(ctx, l, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
			}},
			{Name: "bucket", Run: func(ctx context.Context, h held) (progress, error) {
				if err := l.children(ctx, h.Object().UID); err != nil {
					l.bad = append(l.bad, fmt.Sprint("the bucket goes first: ", err))
				}
				if err := l.change(func() { delete(l.cloud.buckets, h.Object().UID) }); err != nil {
					return progress{}, err
				}
				// The list is not the one that Ensure saw when it removes ours.
				_, err := finalizer.Remove(ctx, l.admin, h.Object(), leaves)
				return done, err
			}},
		},
	}
}

// change writes to the cloud.
func (l *worker) change(f func()) error {
	if err := l.write(); err != nil {
		return err
	}
	l.cloud.mu.Lock()
	f()
	l.cloud.mu.Unlock()
	return l.write()
}

// children fails if the object of that UID has any.
func (l *worker) children(ctx context.Context, uid types.UID) error {
	list, err := l.admin.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, o := range list.Items {
		if slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == uid }) {
			return fmt.Errorf("child %s is there", o.Name)
		}
	}
	return nil
}

// reconcile is one pass over the object, of which obj is a copy of any age.
func (l *worker) reconcile(ctx context.Context, obj *corev1.ConfigMap) error {
	h, live, err := finalizer.Ensure(ctx, l, obj, name, l.plan().Run)
	if err != nil || !live {
		return err
	}
	truth, err := l.admin.Get(ctx, "one", metav1.GetOptions{})
	if err != nil || !finalizer.Has(truth, name) {
		l.bad = append(l.bad, fmt.Sprintf("work begins with stored finalizers %q, error %v", truth.GetFinalizers(), err))
	}
	for _, n := range []string{"a", "b"} {
		_, err := l.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: n, Finalizers: map[string][]string{"b": {keepChild}}[n],
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(h.Object(), corev1.SchemeGroupVersion.WithKind("ConfigMap"))},
		}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	l.cloud.mu.Lock()
	there := l.cloud.buckets[h.Object().UID]
	l.cloud.mu.Unlock()
	if there {
		return nil
	}
	return l.change(func() { l.cloud.buckets[h.Object().UID] = true })
}

// crash says when the first process dies.
type crash struct {
	at     int  // the how manieth write; 0 means never
	lost   bool // that write arrives, and the answer does not
	delete bool // the user deletes the object at that moment
	stale  bool // the next process starts from the copy that was there first
}

// run lives the life of an object through a crash and returns how many writes its
// first process made.
func (c crash) run(t *testing.T) (writes int) {
	ctx := t.Context()
	kube, err := kubernetes.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	admin := kube.CoreV1().ConfigMaps(testserver.Namespace(t))
	first, err := admin.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", Finalizers: []string{keep, leaves}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the namespace can go, whatever happened
		for _, n := range []string{"one", "b"} {
			_, _ = admin.Patch(context.Background(), n, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
	})
	deleting := false
	remove := func() {
		if !deleting {
			deleting = true
			if err := admin.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}

	world := &cloud{buckets: map[types.UID]bool{}}
	var bad []string
	crashed := c.at == 0
	begin := func() (*worker, *fault.Incarnation) {
		var process *fault.Incarnation
		var mu sync.Mutex
		// strike counts a write and reports whether the process dies at it.
		strike := func() bool {
			mu.Lock()
			defer mu.Unlock()
			if crashed {
				if c.at == 0 {
					writes++
				}
				return false
			}
			writes++
			crashed = writes == c.at
			return crashed
		}
		die := func() {
			if c.delete {
				remove()
			}
			process.Kill()
		}
		process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
			switch op.Verb {
			case "get", "list", "watch":
				return fault.Fault{}
			}
			switch {
			case !strike():
				return fault.Fault{}
			case c.lost:
				return fault.Fault{After: die, Lose: true}
			default:
				return fault.Fault{Before: die, Drop: true}
			}
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		kube, err := kubernetes.NewForConfig(process.Config())
		if err != nil {
			t.Fatal(err)
		}
		before := false
		l := &worker{ConfigMapInterface: kube.CoreV1().ConfigMaps(first.Namespace), cloud: world, admin: admin}
		l.write = func() error {
			select {
			case <-process.Killed():
				return fault.ErrKilled
			default:
			}
			// The calls come in pairs; the loss of an answer is a death after the change.
			if before = !before; before == c.lost {
				return nil
			}
			if strike() {
				die()
				return fault.ErrKilled
			}
			return nil
		}
		return l, process
	}

	l, process := begin()
	defer func() { process.Kill() }()
	stale, settled := first, false
	for pass := 0; ; pass++ {
		if pass == 40 {
			t.Fatal("the object is not through after 40 passes")
		}
		obj, err := admin.Get(ctx, "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err) // keep is on it
		}
		if deleting && !finalizer.Has(obj, name) {
			break
		}
		if stale != nil {
			obj, stale = stale, nil
		}
		err = l.reconcile(ctx, obj)
		select {
		case <-process.Killed():
			bad = append(bad, l.bad...)
			l, process = begin()
			if c.stale {
				stale = first
			}
			continue
		default:
		}
		blocked, waits := errors.AsType[*finalizer.BlockedError](err)
		switch {
		case waits && blocked.Err == nil && blocked.Steps[0].Message == "1 left: b":
			// The user takes the finalizer of the child off.
			b, err := admin.Get(ctx, "b", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := finalizer.Remove(ctx, admin, b, keepChild); err != nil {
				t.Fatal(err)
			}
		case apierrors.IsConflict(err), apierrors.IsNotFound(err): // the copy was stale
		case err != nil:
			t.Fatalf("pass %d: %v", pass, err)
		case obj.DeletionTimestamp != nil:
			// A controller does not come back to what it was told is through.
			if live, err := admin.Get(ctx, "one", metav1.GetOptions{}); err != nil || finalizer.Has(live, name) {
				t.Fatalf("pass %d says that it is through, and %q are stored, error %v", pass, live.GetFinalizers(), err)
			}
		case settled:
			remove()
		default:
			settled = true
		}
	}
	bad = append(bad, l.bad...)

	// The end state is the same for all.
	for _, b := range bad {
		t.Error(b)
	}
	if len(world.buckets) > 0 {
		t.Errorf("buckets remain: %v", world.buckets)
	}
	if err := l.children(ctx, first.UID); err != nil {
		t.Error(err)
	}
	obj, err := admin.Get(ctx, "one", metav1.GetOptions{})
	if err == nil { // no cleanup, if ours never was on it
		obj, err = finalizer.Remove(ctx, admin, obj, leaves)
	}
	if err != nil || obj.UID != first.UID || !slices.Equal(obj.Finalizers, []string{keep}) {
		t.Errorf("the object ends as %s with %q, error %v; want %s with the one of the bystander", obj.GetUID(), obj.GetFinalizers(), err, first.UID)
	}
	if !crashed {
		t.Error("the crash did not happen")
	}
	return writes
}

// An object lives once without a crash, and then once for each of its writes, to
// the API server and outside of it, and each way to crash there. The end is the
// same each time: children and bucket are gone, in this order, and then the
// finalizer, while that of a bystander is still there.
//
// Proves F1, F5, F7 and CK4.
func TestServerCrash(t *testing.T) {
	writes := crash{}.run(t)
	if writes < 10 {
		t.Fatalf("a life has %d writes: the test is wrong", writes)
	}
	runs := 0
	for at := 1; at <= writes; at++ {
		for way := range 8 {
			c := crash{at: at, lost: way&1 > 0, delete: way&2 > 0, stale: way&4 > 0}
			t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
				t.Parallel()
				c.run(t)
			})
			runs++
		}
	}
	t.Logf("%d writes, %d lives with a crash", writes, runs)
}
