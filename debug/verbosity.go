package debug

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

const (
	// maxVerbosity is below the levels at which client-go logs URLs, headers and bodies of requests: 6 to 10.
	maxVerbosity    = 5
	maxRaised       = time.Hour
	raisedByDefault = 10 * time.Minute
	maxForm         = 4 << 10 // bytes
)

// Klog sets the verbosity of klog, as its flag -v does, and returns the former one, at most 10. It is a Page.Verbosity for
// programs that log by klog without a logger of their own.
func Klog(level int) (former int) {
	for former = 10; former > 0 && !klog.V(klog.Level(former)).Enabled(); {
		former--
	}
	var v klog.Level
	_ = v.Set(strconv.Itoa(level)) // the error of a text that is no number
	return former
}

// verbosityState is the verbosity while it is raised.
type verbosityState struct {
	Level  int       `json:"level"`
	Former int       `json:"former"`
	Until  time.Time `json:"until"`
}

// verbosity restores the verbosity after a time. The zero value has not raised it.
type verbosity struct {
	mu     sync.Mutex // guards the rest
	raised *verbosityState
	timer  *time.Timer // not nil while raised is not
}

// set sets the verbosity for a time, or the former one if that is 0.
func (v *verbosity) set(apply func(int) int, level int, d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	former := level
	if v.raised != nil {
		v.timer.Stop()
		former = v.raised.Former
	}
	if d == 0 {
		if v.raised != nil {
			apply(former)
		}
		v.raised, v.timer = nil, nil
		return
	}
	if before := apply(level); v.raised == nil {
		former = before
	}
	now := &verbosityState{Level: level, Former: former, Until: time.Now().Add(d)}
	v.raised = now
	v.timer = time.AfterFunc(d, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.raised == now { // otherwise a later request has replaced it
			apply(now.Former)
			v.raised, v.timer = nil, nil
		}
	})
}

// state returns the verbosity, nil if it is not raised.
func (v *verbosity) state() *verbosityState {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.raised
}

// setVerbosity obeys a form.
func (p *Page) setVerbosity(w http.ResponseWriter, r *http.Request) {
	// A page of another site must not send the form from the browser of a user who can reach this one.
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		http.Error(w, "the form is that of another site", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		http.Error(w, "the form cannot be read: send at most 4 KiB with the parameters verbosity and for", http.StatusBadRequest)
		return
	}
	level, err := strconv.Atoi(r.Form.Get("verbosity"))
	if err != nil || level < 0 || level > maxVerbosity {
		http.Error(w, "the parameter verbosity is not valid: use 0 to 5", http.StatusBadRequest)
		return
	}
	d := raisedByDefault
	if text := r.Form.Get("for"); text != "" {
		if d, err = time.ParseDuration(text); err != nil || d < 0 || d > maxRaised {
			http.Error(w, "the parameter for is not valid: use a duration from 0s, which ends it, to 1h", http.StatusBadRequest)
			return
		}
	}
	p.verbosity.set(p.Verbosity, level, d)
	klog.FromContext(r.Context()).Info("Set the verbosity of the log for a time", "verbosity", level, "for", d)
	w.Header().Set("Location", "?")
	w.WriteHeader(http.StatusSeeOther)
}
