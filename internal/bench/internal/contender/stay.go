package contender

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// A Command requests the Usage of a program that stays. If Name is not empty, the program first
// waits until a reconcile has read that version of the object or a newer one.
type Command struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`

	Collect bool `json:"collect,omitempty"` // run a garbage collection first
}

// Usage has the costs of a program since its start, and the sights since the previous Command.
type Usage struct {
	CPU      time.Duration `json:"cpu"`
	Requests int64         `json:"requests"`
	Sights   []Sight       `json:"sights"` // in the order of time
}

// End has the figures of a program that has stopped after it stayed.
type End struct {
	Cut int64 `json:"cut"` // reconciles whose context ended before their work
}

// A Sight is the moment at which a reconcile has read an object.
type Sight struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	At      int64  `json:"at"` // in ns of Unix time, which the processes of a machine share
}

// Shows reports whether the sight is of this version of the object or of a newer one.
func (s Sight) Shows(name, version string) bool {
	if s.Name != name {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(s.Version, version)
	return err == nil && order >= 0
}

// serve prints a Usage for each Command of the input.
func (p *Process) serve(ctx context.Context, out *json.Encoder) error {
	ended := make(chan error, 1)
	go func() { // it waits for input until the process ends
		for in := json.NewDecoder(os.Stdin); ; {
			var c Command
			err := in.Decode(&c)
			if errors.Is(err, io.EOF) {
				ended <- nil
				return
			}
			if err == nil {
				p.sights.wait(ctx, c)
				if c.Collect {
					runtime.GC()
				}
				var u Usage
				if u, err = p.usage(); err == nil {
					err = out.Encode(u)
				}
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (p *Process) usage() (Usage, error) {
	spent, err := cpu()
	if err != nil {
		return Usage{}, err
	}
	return Usage{CPU: spent, Requests: p.requests.Load(), Sights: p.sights.take()}, nil
}

// cpu returns the process's time of the user and of the system.
func cpu() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, err
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}

// sights are the sights since the last Command. The first Command begins to record them.
type sights struct {
	mu      sync.Mutex // guards all below
	on      bool
	seen    []Sight
	awaited Command
	found   chan struct{} // closed at the first sight of awaited; nil without awaited
}

func (s *sights) add(obj metav1.Object) {
	at := time.Now().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		return
	}
	s.seen = append(s.seen, Sight{Name: obj.GetName(), Version: obj.GetResourceVersion(), At: at})
	if s.found != nil && s.seen[len(s.seen)-1].Shows(s.awaited.Name, s.awaited.Version) {
		close(s.found)
		s.found = nil
	}
}

// wait waits for the version of the Command.
func (s *sights) wait(ctx context.Context, c Command) {
	s.mu.Lock()
	s.on = true
	if c.Name == "" || slices.ContainsFunc(s.seen, func(seen Sight) bool { return seen.Shows(c.Name, c.Version) }) {
		s.mu.Unlock()
		return
	}
	found := make(chan struct{})
	s.awaited, s.found = c, found
	s.mu.Unlock()
	select {
	case <-found:
	case <-ctx.Done():
	}
}

func (s *sights) take() []Sight {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.seen
	s.seen = nil
	return taken
}
