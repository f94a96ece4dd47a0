package preview

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// A Report has the changes that the calls of a preview would make. Its texts are safe for a terminal.
type Report struct {
	Keys  int    `json:"keys"`            // that have run
	Calls []Call `json:"calls,omitempty"` // those with something to show, by controller and key
}

// A Call is the last call of a key.
type Call struct {
	Controller string   `json:"controller,omitempty"` // "" for writes outside of a call, which come last
	Key        string   `json:"key,omitempty"`
	Changes    []Change `json:"changes,omitempty"` // in their order
	Skipped    []string `json:"skipped,omitempty"` // effects outside of the API server: see Skip
	Omitted    int      `json:"omitted,omitempty"` // changes and effects above the first 1,000 of each

	// Error is the error of the call, which then may not show all that it would change.
	Error string `json:"error,omitempty"`
	// Waits is the text of the controllerkit.WaitingError of the call, which then shows what it does before the wait.
	Waits string `json:"waits,omitempty"`
}

// A Change is a write that would change an object.
type Change struct {
	Action      Action  `json:"action"`
	Resource    string  `json:"resource"` // such as deployments.apps
	Subresource string  `json:"subresource,omitempty"`
	Namespace   string  `json:"namespace,omitempty"`
	Name        string  `json:"name"`
	Fields      []Field `json:"fields,omitempty"`  // that differ; none for an object that is created or deleted
	Omitted     int     `json:"omitted,omitempty"` // fields above the first 100

	// RestartsPods is whether the Pod template of a Deployment, StatefulSet or DaemonSet differs, so
	// that its Pods are replaced. It is false for other kinds, whose Pods the
	// preview does not know.
	RestartsPods bool `json:"restartsPods,omitempty"`

	// Note is a sentence about the change, such as why its fields are not known.
	Note string `json:"note,omitempty"`
}

// An Action is a change of an object.
type Action string

// The actions. An object that would be deleted stays until its finalizers are gone.
const (
	Create  Action = "create"
	Modify  Action = "change"
	Destroy Action = "delete"
)

// A Field is a field of an object that differs. The values of a Secret are "(hidden)". The field
// .metadata.managedFields stands for a write that changes the managers of fields alone, and its values are hidden, too.
type Field struct {
	Path string `json:"path"`          // such as .spec.containers[name=web].image
	Old  string `json:"old,omitempty"` // as JSON, cut after 512 bytes; "" if the field is absent
	New  string `json:"new,omitempty"`
}

func (r *Report) add(id id, c *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	shown := Call{Controller: id.controller, Key: kube.Printable(id.key, maxText), Changes: slices.Clone(c.changes), Skipped: slices.Clone(c.skipped), Omitted: c.omitted}
	for i, change := range shown.Changes {
		shown.Changes[i].Fields = slices.Clone(change.Fields)
	}
	switch {
	case kube.Waits(c.err) > 0:
		shown.Waits = kube.Printable(c.err.Error(), maxText)
	case c.err != nil:
		shown.Error = kube.Printable(c.err.Error(), maxText)
	}
	if len(shown.Changes) > 0 || len(shown.Skipped) > 0 || shown.Error != "" || shown.Waits != "" {
		r.Calls = append(r.Calls, shown)
	}
}

// ExitCode returns 1 if a call failed, otherwise 2 if a call would change an object, and otherwise 0. Skipped effects do
// not count, because most of them are idempotent and part of each call.
func (r *Report) ExitCode() int {
	code := 0
	for _, c := range r.Calls {
		if c.Error != "" {
			return 1
		}
		if len(c.Changes) > 0 {
			code = 2
		}
	}
	return code
}

// WriteText writes the report for people to w:
//
//	websites shop/front
//	  change deployments.apps shop/front: restarts Pods
//	    .spec.template.spec.containers[name=web].image: "nginx:1.27" -> "nginx:1.28"
//	  create services shop/front
//	1 key ran. 1 object would be created, 1 changed, 0 deleted. Pods are restarted by 1 change.
//
// For programs, encode the Report as JSON.
func (r *Report) WriteText(w io.Writer) error {
	p := &printer{w: w}
	for _, c := range r.Calls {
		if c.Controller == "" {
			p.line("outside of a call")
		} else {
			p.line("%s %s", c.Controller, c.Key)
		}
		for _, change := range c.Changes {
			p.change(change)
		}
		for _, text := range c.Skipped {
			p.line("  skipped: %s", text)
		}
		if c.Omitted > 0 {
			p.line("  and %d more", c.Omitted)
		}
		if c.Error != "" {
			p.line("  failed: %s", c.Error)
		}
		if c.Waits != "" {
			p.line("  waits: %s", c.Waits)
		}
	}
	p.line("%s", r.summary())
	return p.err
}

func (r *Report) summary() string {
	type object struct{ resource, namespace, name string }
	seen := map[object]bool{}
	count := map[Action]int{}
	restarts, skipped, failed := 0, 0, 0
	for _, call := range r.Calls {
		for _, c := range call.Changes {
			if o := (object{c.Resource, c.Namespace, c.Name}); !seen[o] {
				seen[o] = true
				count[c.Action]++
			}
			if c.RestartsPods {
				restarts++
			}
		}
		skipped += len(call.Skipped)
		if call.Error != "" {
			failed++
		}
	}
	text := fmt.Sprintf("%s ran. %s would be created, %d changed, %d deleted.",
		plural(r.Keys, "key"), plural(count[Create], "object"), count[Modify], count[Destroy])
	if restarts > 0 {
		text += fmt.Sprintf(" Pods are restarted by %s.", plural(restarts, "change"))
	}
	if skipped > 0 {
		text += fmt.Sprintf(" %s outside of the API server skipped.", plural(skipped, "effect"))
	}
	if failed > 0 {
		text += fmt.Sprintf(" %s failed, and can show less than they would change.", plural(failed, "key"))
	}
	return text
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// A printer writes lines until one fails.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) change(c Change) {
	name, resource := c.Name, c.Resource
	if c.Namespace != "" {
		name = c.Namespace + "/" + name
	}
	if c.Subresource != "" {
		resource += "/" + c.Subresource
	}
	text := fmt.Sprintf("  %s %s %s", c.Action, resource, name)
	if c.RestartsPods {
		text += ": restarts Pods"
	}
	p.line("%s", text)
	if c.Note != "" {
		p.line("    %s", c.Note)
	}
	for _, f := range c.Fields {
		p.line("    %s: %s -> %s", f.Path, cmp.Or(f.Old, "(absent)"), cmp.Or(f.New, "(absent)"))
	}
	if c.Omitted > 0 {
		p.line("    and %d more fields", c.Omitted)
	}
}
