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
	ErrExists   = errors.New("cloud: exists already")
)

var errNameless = errors.New("cloud: Name is empty: this service wants its clients to choose the id")

// Options say what kind of service it is. The zero value is the worst one: it
// chooses ids, ignores tokens, and shows at once what was made.
type Options struct {
	// Idempotent makes Create return the resource that an earlier Create with the
	// same Token made. false means that tokens are stored and have no effect.
	Idempotent bool

	// ChosenIDs makes a resource's ID its Name, which Create then requires, and
	// refuses a second one. false means that the service chooses a new ID each time.
	ChosenIDs bool

	// HiddenReads is how many Lists and Gets do not show a new resource yet, in all,
	// whoever calls them. 0 means that reads are consistent.
	HiddenReads int
}

// A Resource is something that the service holds.
type Resource struct {
	ID    string
	Name  string // need not be unique unless Options.ChosenIDs
	Token string
	Tags  map[string]string
}

// A Cloud is a handle on a service. Make one with [New]. Its methods may be
// called concurrently. They return ctx's error if ctx is done.
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

// Through returns a handle on the same service whose calls are made by through:
// it decides whether and when call is called, and what its error becomes. name is
// the call and what it is about, such as "create account-a". What c itself was made
// to go through does not apply to the new handle.
func (c *Cloud) Through(through func(ctx context.Context, name string, call func(context.Context) error) error) *Cloud {
	return &Cloud{through: through, service: c.service, remote: c.remote}
}

// do makes a call: in this process, or else in that of the service.
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

// Create makes a resource. The ID of r is ignored.
func (c *Cloud) Create(ctx context.Context, r Resource) (Resource, error) {
	r.ID = ""
	var made Resource
	err := c.do(ctx, "create", r, &made, func() error {
		if c.options.ChosenIDs && r.Name == "" {
			return fmt.Errorf("create: %w", errNameless)
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
			return fmt.Errorf("create %q: %w", r.Name, ErrExists)
		}
		h := &held{Resource: r, hidden: c.options.HiddenReads}
		h.Tags = maps.Clone(r.Tags)
		c.held = append(c.held, h)
		c.creates++
		made = h.copy()
		return nil
	})
	return made, err
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
		return fmt.Errorf("get %q: %w", id, ErrNotFound)
	})
	return found, err
}

// List returns the resources with the Name, or all if it is empty, in the order
// in which they were made.
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
	return found, err
}

// Update replaces the tags of a resource.
func (c *Cloud) Update(ctx context.Context, id string, tags map[string]string) error {
	return c.do(ctx, "update", Resource{ID: id, Tags: tags}, nil, func() error {
		for _, h := range c.held {
			if h.ID == id {
				h.Tags = maps.Clone(tags)
				return nil
			}
		}
		return fmt.Errorf("update %q: %w", id, ErrNotFound)
	})
}

// Delete removes a resource. That there is none is an error that wraps ErrNotFound.
func (c *Cloud) Delete(ctx context.Context, id string) error {
	return c.do(ctx, "delete", Resource{ID: id}, nil, func() error {
		i := slices.IndexFunc(c.held, func(h *held) bool { return h.ID == id })
		if i < 0 {
			return fmt.Errorf("delete %q: %w", id, ErrNotFound)
		}
		c.held = slices.Delete(c.held, i, i+1)
		c.deletes++
		return nil
	})
}

// Resources returns what the service holds, in the order in which it was made.
// It is not a call: no fault and no HiddenReads applies. A handle made by Connect
// does not have it: nil.
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

// Calls returns how many Creates made and how many Deletes removed a resource.
// It is not a call either, and 0 for a handle made by Connect.
func (c *Cloud) Calls() (creates, deletes int) {
	if c.remote != nil {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.creates, c.deletes
}

// nameOf names a call by the name of its resource, as a generated id says nothing.
// What is in another process cannot be asked for it.
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
