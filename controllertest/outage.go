package controllertest

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// An outage is the requests that fail, and how. Its text is "delete pods 500 x10": ten
// deletions of Pods fail with 500. "pods" without a verb is every request of the resource,
// "external" is the external calls, and "all" is every request to the API server.
type outage struct {
	verb, resource string // "" means every one
	form           string
	requests       int           // 0 means no bound
	time           time.Duration // at most
}

// externalCalls is the resource of an outage of external calls.
const externalCalls = "external"

const (
	hang  = "hang"  // until the end of the outage, then as reset
	reset = "reset" // without an effect
)

// forms are the ways in which a request of an outage fails. As the load balancer of a server that
// is down, 503 has no Retry-After.
func forms() []string { return []string{"500", "503", "429", reset, hang} }

// The bounds of an outage. A controller with exponential delays waits for about as long as the
// outage was until it tries again, so a longer one would need a longer Options.ConvergeTimeout.
const (
	maxRequests = 100
	maxOutage   = 10 * time.Second
	outageTime  = 6 * time.Second // of an outage with a number of requests
)

func parseOutage(text string) (outage, error) {
	words := strings.Split(text, " ")
	if len(words) < 3 || len(words) > 4 || slices.Contains(words, "") {
		return outage{}, fmt.Errorf("outage %q has not the form %q: name the requests, how they fail, and their number or the time", text, "delete pods 500 x10")
	}
	o := outage{resource: words[len(words)-3], form: words[len(words)-2], time: outageTime}
	if len(words) == 4 {
		o.verb = words[0]
	}
	if o.resource == "all" {
		if o.resource = ""; o.verb != "" {
			return outage{}, fmt.Errorf("outage %q has a verb of all resources: remove %q, or name a resource", text, o.verb)
		}
	}
	if !slices.Contains(forms(), o.form) {
		return outage{}, fmt.Errorf("outage %q: requests cannot fail by %q: use one of %v", text, o.form, forms())
	}
	extent := words[len(words)-1]
	if count, ok := strings.CutPrefix(extent, "x"); ok {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > maxRequests || o.form == hang {
			return outage{}, fmt.Errorf("outage %q: %q is no extent: use x1 to x%d, and a time for %s", text, extent, maxRequests, hang)
		}
		o.requests = n
		return o, nil
	}
	d, err := time.ParseDuration(extent)
	if err != nil || d <= 0 || d > maxOutage {
		return outage{}, fmt.Errorf("outage %q: %q is no extent: use a number of requests such as x10, or a time such as 2s of at most %v", text, extent, maxOutage)
	}
	o.time = d
	return o, nil
}

// outages returns the outages that are tried at an operation. Ten failures in a row are more than
// most bounded retries. The other forms and extents take turns by the name of the operation.
func outages(op operation) []string {
	words := strings.Fields(op.id)
	if len(words) < 2 {
		return nil
	}
	verb := words[0]
	turn := fnv.New32a()
	turn.Write([]byte(op.id))
	n := int(turn.Sum32() % 60)
	if op.external {
		verb, _, _ = strings.Cut(words[1], "#") // a call without an object
		return []string{verb + " " + externalCalls + " " + reset + " x10", externalCalls + " " + hang + " 2s"}
	}
	resource, _, _ := strings.Cut(words[1], "#")
	all := []string{verb + " " + resource + " 500 x10"}
	if op.write {
		some := []string{reset + " x15", "503 x8", "429 2s", hang + " 2s"}
		every := []string{"503 2s", hang + " 2s", reset + " 2s", "500 x20", "429 2s"}
		all = append(all, resource+" "+some[n%len(some)], "all "+every[n%len(every)])
	}
	return all
}

// A failing outage is one that has begun.
type failing struct {
	outage
	until time.Time
	ended chan struct{}
}

// outageLocked returns the fault of the request at which an outage begins.
func (r *run) outageLocked(text string) fault.Fault {
	o, _ := parseOutage(text) // the plan has been parsed
	f := &failing{outage: o, until: time.Now().Add(o.time), ended: make(chan struct{})}
	r.outages = append(r.outages, f)
	until := f.until
	fails := f.failsLocked()
	fails.Before = func() { r.during(f, until) }
	return fails
}

// during postpones rest until the end of an outage.
func (r *run) during(f *failing, until time.Time) {
	done := r.begin()
	r.goes(func() {
		defer done()
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-f.ended:
		case <-timer.C:
		}
		r.mu.Lock()
		r.outages = slices.DeleteFunc(r.outages, func(other *failing) bool { return other == f })
		r.noteLocked("the outage ends")
		r.mu.Unlock()
		if f.form == "429" {
			time.Sleep(time.Second + holdTime) // the client waits for Retry-After
		}
	})
}

// failsLocked returns the fault of a request during an outage.
func (r *run) failsLocked(verb, resource, subresource string) (_ fault.Fault, fails bool) {
	for _, f := range r.outages {
		if f.covers(verb, resource, subresource) && time.Now().Before(f.until) {
			return f.failsLocked(), true
		}
	}
	return fault.Fault{}, false
}

// covers reports whether an outage is of a request.
func (o outage) covers(verb, resource, subresource string) bool {
	switch {
	case o.verb != "" && o.verb != verb:
		return false
	case o.resource == "":
		return resource != externalCalls
	}
	return o.resource == resource || o.resource == resource+"/"+subresource
}

// failsLocked counts a request of the outage and returns its fault.
func (f *failing) failsLocked() fault.Fault {
	if f.requests > 0 {
		if f.requests--; f.requests == 0 {
			f.until = time.Time{} // the others succeed
			close(f.ended)
		}
	}
	response := func(code int, reason metav1.StatusReason, retryAfter int) fault.Fault {
		return fault.Fault{Response: &fault.Response{Code: code, Reason: reason, RetryAfter: retryAfter, Message: "controllertest: " + string(Outage)}}
	}
	switch f.form {
	case "503":
		return response(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, 0)
	case "429":
		return response(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, 1)
	case reset:
		return fault.Fault{Drop: true}
	case hang:
		return fault.Fault{Delay: time.Until(f.until), Drop: true}
	}
	return response(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0)
}
