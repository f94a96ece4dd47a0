package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
)

const space = "default" // the namespace of the websites

// A slot is the place of one object, which one user creates, edits and deletes.
type slot struct {
	resource string // websites or tenants
	wanted
	exists bool
	// unsure is true after a create request without a response: it may arrive late, after
	// a deletion, so that the object is not deleted before all faults have ended.
	unsure bool
}

func slots(n int) []*slot {
	all := make([]*slot, n)
	for i := range all {
		all[i] = &slot{resource: websites, wanted: wanted{name: fmt.Sprintf("site-%d", i)}}
		if i%2 == 1 {
			all[i] = &slot{resource: tenants, wanted: wanted{name: fmt.Sprintf("team-%d", i)}}
		}
	}
	return all
}

// spec returns a random spec. The plan of a tenant is immutable.
func (s *slot) random(rng *rand.Rand) map[string]any {
	if s.resource == websites {
		return map[string]any{
			"host":  fmt.Sprintf("h%d.example.com", rng.IntN(1e6)),
			"image": fmt.Sprintf("site:%d", rng.IntN(1e3)), "replicas": int64(1 + rng.IntN(5)),
		}
	}
	plan := []string{"Basic", "Standard", "Premium"}[rng.IntN(3)]
	if s.exists {
		plan = s.spec["account"].(map[string]any)["plan"].(string)
	}
	spec := map[string]any{"account": map[string]any{"plan": plan}, "networkIsolation": rng.IntN(2) == 0}
	if rng.IntN(4) > 0 {
		spec["quota"] = map[string]any{"pods": fmt.Sprint(1 + rng.IntN(100))}
	}
	var members []any
	for n := range rng.IntN(4) {
		members = append(members, fmt.Sprintf("user-%d-%d", n, rng.IntN(100)))
	}
	if members != nil {
		spec["members"] = members
	}
	return spec
}

// A client is the client of the users, with the number of their changes.
type client struct {
	dynamic.Interface
	changes atomic.Int64
}

func (c *client) of(s *slot) dynamic.ResourceInterface {
	if s.resource == websites {
		return c.Resource(resources()[websites]).Namespace(space)
	}
	return c.Resource(resources()[tenants])
}

// definite calls do until its outcome is known: during a fault, a request has no response. It
// reports whether do succeeded. It ends with ctx, which outlives all faults.
func definite(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	for {
		request, cancel := context.WithTimeout(ctx, 5*time.Second)
		done, err := do(request)
		cancel()
		if err == nil || ctx.Err() != nil {
			return done, err
		}
		rest(ctx, 500*time.Millisecond)
	}
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// create creates the object, unless an object that is being deleted still has its name.
func (c *client) create(ctx context.Context, s *slot, rng *rand.Rand) error {
	spec, mark := s.random(rng), fmt.Sprint(rng.Uint64())
	made, err := definite(ctx, func(ctx context.Context) (bool, error) {
		obj := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": resources()[s.resource].GroupVersion().String(), "kind": map[string]string{websites: "Website", tenants: "Tenant"}[s.resource],
			"metadata": map[string]any{"name": s.name, "labels": map[string]any{"soak": mark}}, "spec": spec,
		}}
		live, err := c.of(s).Create(ctx, obj, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			live, err = c.of(s).Get(ctx, s.name, metav1.GetOptions{})
			if err == nil && live.GetLabels()["soak"] != mark {
				return false, nil
			}
		}
		if err != nil {
			s.unsure = true
			return false, err
		}
		s.uid = string(live.GetUID())
		return true, nil
	})
	if made {
		s.spec, s.exists = spec, true
		c.changes.Add(1)
	}
	return err
}

// edit writes a new spec with the resource version, so that a request that arrives late does
// not undo a later one.
func (c *client) edit(ctx context.Context, s *slot, rng *rand.Rand) error {
	spec := s.random(rng)
	_, err := definite(ctx, func(ctx context.Context) (bool, error) {
		live, err := c.of(s).Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		live.Object["spec"] = spec
		_, err = c.of(s).Update(ctx, live, metav1.UpdateOptions{})
		return true, err
	})
	if err == nil {
		s.spec = spec
		c.changes.Add(1)
	}
	return err
}

func (c *client) remove(ctx context.Context, s *slot) error {
	_, err := definite(ctx, func(ctx context.Context) (bool, error) {
		err := c.of(s).Delete(ctx, s.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID(s.uid))}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			err = nil
		}
		return true, err
	})
	if err == nil {
		s.exists = false
		c.changes.Add(1)
	}
	return err
}

// meddle changes or deletes a child, which belongs to the controller. Its outcome is
// unimportant: the controller must undo it.
func (c *client) meddle(ctx context.Context, s *slot, rng *rand.Rand) {
	namespace, name, kinds := space, s.name, []string{"configmaps", "services", "deployments"}
	patch := `{"data":{"HOST":"meddled"},"spec":{"replicas":9,"selector":{"app.kubernetes.io/name":"meddled"}}}`
	if s.resource == tenants {
		namespace, name, kinds = s.name, "tenant", []string{"resourcequotas", "rolebindings", "networkpolicies"}
		patch = `{"subjects":[],"spec":{"hard":{"pods":"0"}}}`
	}
	kind := kinds[rng.IntN(len(kinds))]
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	child := c.Resource(resources()[kind]).Namespace(namespace)
	var err error
	switch {
	case rng.IntN(2) == 0:
		err = child.Delete(ctx, name, metav1.DeleteOptions{})
	case kind == "deployments": // its selector is immutable
		_, err = child.Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"replicas":9}}`), metav1.PatchOptions{FieldManager: "meddler"})
	default:
		_, err = child.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "meddler"})
	}
	if err == nil {
		c.changes.Add(1)
	}
}

// seed creates all objects.
func (c *client) seed(ctx context.Context, all []*slot, users int, rng *rand.Rand) error {
	return c.each(ctx, all, users, rng, func(rng *rand.Rand, own []*slot) error {
		for _, s := range own {
			if err := c.create(ctx, s, rng); err != nil {
				return err
			}
		}
		return nil
	})
}

// churn lets the users change objects until ctx is done. It returns when the outcome of each
// change is known, which is after the faults, or with late.
func (c *client) churn(ctx, late context.Context, all []*slot, users int, rng *rand.Rand) error {
	return c.each(late, all, users, rng, func(rng *rand.Rand, own []*slot) error {
		for ctx.Err() == nil {
			s := own[rng.IntN(len(own))]
			var err error
			switch n := rng.IntN(20); {
			case !s.exists:
				err = c.create(late, s, rng)
			case n < 4 && !s.unsure:
				err = c.remove(late, s)
			case n < 8:
				c.meddle(ctx, s, rng)
			default:
				err = c.edit(late, s, rng)
			}
			if err != nil {
				return fmt.Errorf("a user of %s %s: %w", s.resource, s.name, err)
			}
			rest(ctx, time.Duration(rng.Int64N(int64(time.Second))))
		}
		return nil
	})
}

// each calls f for each user with the user's slots, at once, and returns the first error.
func (c *client) each(ctx context.Context, all []*slot, users int, rng *rand.Rand, f func(*rand.Rand, []*slot) error) error {
	users = min(users, len(all))
	own := make([][]*slot, users)
	for i, s := range all {
		own[i%users] = append(own[i%users], s)
	}
	errs := make([]error, users)
	var wg sync.WaitGroup
	for n := range users {
		seeded := rand.New(rand.NewPCG(rng.Uint64(), uint64(n)))
		wg.Go(func() { errs[n] = f(seeded, own[n]) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
