package cloud

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Errors of a service.
var (
	ErrNotFound = errors.New("cloud: not found")
	ErrExists   = errors.New("cloud: already exists")
)

var errNameless = errors.New("cloud: Resource.Name is empty: set it, because Options.ChosenIDs makes it the id")

// Options select the kind of service. The zero value chooses ids, ignores tokens and has
// consistent reads.
type Options struct {
	// Idempotent makes Create return the resource that an earlier Create with the
	// same Token made. If it is false, tokens are stored and have no effect.
	Idempotent bool

	// ChosenIDs makes a resource's Name its ID. Create then requires a Name that no
	// other resource has. If it is false, the service chooses a new ID each time.
	ChosenIDs bool

	// HiddenReads is the number of Lists and Gets, over all callers, that do not show a
	// new resource yet. 0 means that reads are consistent.
	HiddenReads int
}

// A Resource is an object of the service.
type Resource struct {
	ID    string
	Name  string // need not be unique unless Options.ChosenIDs
	Token string
	Tags  map[string]string
}

// A Cloud is a handle on a service. Make one with [New]. Its methods may be called
// concurrently. If ctx is done, they return its error.
type Cloud struct {
	through func(ctx context.Context, name string, call func(context.Context) error) error
	*service
	remote *remote // instead of service, see Connect
}

type service struct {
	options Options

	mu      sync.Mutex
	last    int
	creates int
	deletes int
	held    []*held // in order of creation
}

type held struct {
	Resource
	hidden int
}

// New returns a handle on a new, empty service.
func New(options Options) *Cloud {
	return &Cloud{service: &service{options: options}}
}

// Through returns a handle on the same service that passes each call to through, which
// decides whether and when to run it and which error to return. name is the call and the
// resource, such as "create account-a". The new handle does not pass calls to the
// function of c.
func (c *Cloud) Through(through func(ctx context.Context, name string, call func(context.Context) error) error) *Cloud {
	return &Cloud{through: through, service: c.service, remote: c.remote}
}

// do makes a call, in this process or in the process of the service.
func (c *Cloud) do(ctx context.Context, call string, about Resource, result any, local func() error) error {
	once := func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.remote != nil {
			return c.remote.call(ctx, call, about, result)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return local()
	}
	if c.through == nil {
		return once(ctx)
	}
	name := about.Name
	if name == "" {
		name = c.nameOf(about.ID)
	}
	return c.through(ctx, call+" "+name, once)
}

// Create makes a resource. It ignores the ID of r.
func (c *Cloud) Create(ctx context.Context, r Resource) (Resource, error) {
	r.ID = ""
	var made Resource
	err := c.do(ctx, "create", r, &made, func() error {
		if c.options.ChosenIDs && r.Name == "" {
			return errNameless
		}
		for _, h := range c.held {
			if c.options.Idempotent && r.Token != "" && h.Token == r.Token {
				made = h.copy()
				return nil
			}
		}
		r.ID = r.Name
		if !c.options.ChosenIDs {
			c.last++
			r.ID = fmt.Sprintf("id-%d", c.last)
		} else if slices.ContainsFunc(c.held, func(h *held) bool { return h.ID == r.ID }) {
			return fmt.Errorf("%w: create %q", ErrExists, r.Name)
		}
		h := &held{Resource: r, hidden: c.options.HiddenReads}
		h.Tags = maps.Clone(r.Tags)
		c.held = append(c.held, h)
		c.creates++
		made = h.copy()
		return nil
	})
	if err != nil {
		return Resource{}, err // the response can be lost
	}
	return made, nil
}

// Get returns the resource with the ID, or an error that wraps ErrNotFound.
func (c *Cloud) Get(ctx context.Context, id string) (Resource, error) {
	var found Resource
	err := c.do(ctx, "get", Resource{ID: id}, &found, func() error {
		for _, h := range c.held {
			if h.ID == id && h.visible() {
				found = h.copy()
				return nil
			}
		}
		return fmt.Errorf("%w: get %q", ErrNotFound, id)
	})
	if err != nil {
		return Resource{}, err
	}
	return found, nil
}

// List returns the resources with the Name, or all if it is empty, in the order of their
// creation.
func (c *Cloud) List(ctx context.Context, name string) ([]Resource, error) {
	var found []Resource
	err := c.do(ctx, "list", Resource{Name: name}, &found, func() error {
		found = nil
		for _, h := range c.held {
			if (name == "" || h.Name == name) && h.visible() {
				found = append(found, h.copy())
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Update replaces the tags of the resource with the ID, or returns an error that wraps
// ErrNotFound.
func (c *Cloud) Update(ctx context.Context, id string, tags map[string]string) error {
	return c.do(ctx, "update", Resource{ID: id, Tags: tags}, nil, func() error {
		for _, h := range c.held {
			if h.ID == id {
				h.Tags = maps.Clone(tags)
				return nil
			}
		}
		return fmt.Errorf("%w: update %q", ErrNotFound, id)
	})
}

// Delete removes the resource with the ID, or returns an error that wraps ErrNotFound.
func (c *Cloud) Delete(ctx context.Context, id string) error {
	return c.do(ctx, "delete", Resource{ID: id}, nil, func() error {
		i := slices.IndexFunc(c.held, func(h *held) bool { return h.ID == id })
		if i < 0 {
			return fmt.Errorf("%w: delete %q", ErrNotFound, id)
		}
		c.held = slices.Delete(c.held, i, i+1)
		c.deletes++
		return nil
	})
}

// Resources returns the resources of the service in the order of their creation. It is
// not a call, so faults and HiddenReads do not apply. A handle made by Connect returns
// nil.
func (c *Cloud) Resources() []Resource {
	if c.remote != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Resource, 0, len(c.held))
	for _, h := range c.held {
		all = append(all, h.copy())
	}
	return all
}

// Calls returns the number of Creates that made a resource and the number of Deletes that
// removed one. It is not a call either. A handle made by Connect returns 0.
func (c *Cloud) Calls() (creates, deletes int) {
	if c.remote != nil {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.creates, c.deletes
}

// nameOf returns the name of the resource with the id, because a chosen id has no meaning
// to a reader. If the resource is absent or in another process, nameOf returns the id
// without its number.
func (c *Cloud) nameOf(id string) string {
	if c.remote == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, h := range c.held {
			if h.ID == id && h.Name != "" {
				return h.Name
			}
		}
	}
	return strings.TrimRight(id, "0123456789")
}

func (h *held) visible() bool {
	if h.hidden > 0 {
		h.hidden--
		return false
	}
	return true
}

func (h *held) copy() Resource {
	r := h.Resource
	r.Tags = maps.Clone(r.Tags)
	return r
}
