// Package outage is the outages of package controllertest: which requests of a plan fail, how,
// and for how long.
package outage

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

// An Outage is the requests that fail, and how. Its text is "delete pods 500 x10": ten deletions
// of Pods fail with 500. "pods" without a verb is every request of the resource, "external" is
// the external calls, and "all" is every request to the API server. It is for one goroutine at a
// time.
type Outage struct {
	verb, resource string // "" means every one
	form           string
	left           int           // requests; 0 means no bound
	time           time.Duration // at most
}

// External is the resource of external calls.
const External = "external"

const (
	hang  = "hang"  // until the end of the outage, then as reset
	reset = "reset" // without an effect
)

// forms are the ways in which a request fails. As the load balancer of a server that is down,
// 503 has no Retry-After.
func forms() []string { return []string{"500", "503", "429", reset, hang} }

// The bounds of an outage. A controller with exponential delays waits for about as long as the
// outage was until it tries again, so a longer one would need a longer Options.ConvergeTimeout.
const (
	maxRequests = 100
	maxTime     = 10 * time.Second
	defaultTime = 4 * time.Second // with a number of requests
)

// Parse reads the text of an outage.
func Parse(text string) (*Outage, error) {
	words := strings.Split(text, " ")
	if len(words) < 3 || len(words) > 4 || slices.Contains(words, "") {
		return nil, fmt.Errorf("outage %q has not the form %q: name the requests, how they fail, and their number or the time", text, "delete pods 500 x10")
	}
	extent := words[len(words)-1]
	o := &Outage{resource: words[len(words)-3], form: words[len(words)-2], time: defaultTime}
	if len(words) == 4 {
		o.verb = words[0]
	}
	if o.resource == "all" {
		if o.resource = ""; o.verb != "" {
			return nil, fmt.Errorf("outage %q has a verb of all resources: remove %q, or name a resource", text, o.verb)
		}
	}
	if !slices.Contains(forms(), o.form) {
		return nil, fmt.Errorf("outage %q: requests cannot fail by %q: use one of %v", text, o.form, forms())
	}
	if count, ok := strings.CutPrefix(extent, "x"); ok {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > maxRequests || o.form == hang {
			return nil, fmt.Errorf("outage %q: %q is no extent: use x1 to x%d, and a time for %s", text, extent, maxRequests, hang)
		}
		o.left = n
		return o, nil
	}
	d, err := time.ParseDuration(extent)
	if err != nil || d <= 0 || d > maxTime {
		return nil, fmt.Errorf("outage %q: %q is no extent: use a number of requests such as x10, or a time such as 2s of at most %v", text, extent, maxTime)
	}
	o.time = d
	return o, nil
}

// At returns the texts of the outages to try at an operation, given as in a plan: of the same kind
// of request, and if it is a write, of the resource and of all. Three seconds and twenty failures in
// a row are more than most bounded retries. Forms and extents take turns by the operation.
func At(operation string, write bool) []string {
	words := strings.Fields(operation)
	if len(words) < 2 {
		return nil
	}
	turn := fnv.New32a()
	turn.Write([]byte(operation))
	n := int(turn.Sum32() % 60)
	extent := []string{"x20", "3s"}[n%2]
	verb := words[0]
	second, _, _ := strings.Cut(words[1], "#")
	if verb == External {
		return []string{second + " " + External + " " + reset + " " + extent, External + " " + hang + " 2s"}
	}
	all := []string{verb + " " + second + " 500 " + extent}
	if write {
		some := []string{reset + " x15", "503 x8", "429 2s", hang + " 2s"}
		every := []string{"503 2s", hang + " 2s", reset + " 2s", "500 x20", "429 2s"}
		all = append(all, second+" "+some[n/2%len(some)], "all "+every[n%len(every)])
	}
	return all
}

// Time returns the bound of its time, and how long a client may wait after its end.
func (o *Outage) Time() (bound, after time.Duration) {
	if o.form == "429" {
		after = time.Second // Retry-After
	}
	return o.time, after
}

// Covers reports whether a request is one of the outage.
func (o *Outage) Covers(verb, resource, subresource string) bool {
	switch {
	case o.verb != "" && o.verb != verb:
		return false
	case o.resource == "":
		return resource != External
	}
	return o.resource == resource || o.resource == resource+"/"+subresource
}

// Fail returns the fault of a request of the outage, which ends after a time, and whether it is
// the last one.
func (o *Outage) Fail(left time.Duration) (_ fault.Fault, last bool) {
	last = o.left == 1
	o.left--
	response := func(code int, reason metav1.StatusReason, retryAfter int) fault.Fault {
		return fault.Fault{Response: &fault.Response{Code: code, Reason: reason, RetryAfter: retryAfter, Message: "controllertest: outage"}}
	}
	switch o.form {
	case "503":
		return response(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, 0), last
	case "429":
		return response(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, 1), last
	case reset:
		return fault.Fault{Drop: true}, last
	case hang:
		return fault.Fault{Delay: left, Drop: true}, last
	}
	return response(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0), last
}
