package debug

import (
	"fmt"
	"net/http"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	profilesPath = "/debug/pprof/"
	cpuProfile   = "profile"

	defaultSeconds = 30
	maxSeconds     = 50 // shorter than the WriteTimeout of package serve
)

// Profiles returns a handler that serves the profiles of the process below /debug/pprof/, such
// as /debug/pprof/heap, for go tool pprof. The profiles and their parameters debug and gc are
// those of [runtime/pprof]; /debug/pprof/profile is the CPU profile of the time in the parameter
// seconds, which is 1 to 50; without it, 30. It writes one profile at a time: other requests get
// the status 429. Unlike an import of net/http/pprof, it adds nothing to http.DefaultServeMux.
//
// The handler does not authenticate. A profile has names of functions, and labels such as those
// of shards, but no contents of objects.
func Profiles() http.Handler { return &profiles{} }

type profiles struct{ writing sync.Mutex }

func (p *profiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if !isRead(w, r) {
		return
	}
	name := strings.TrimPrefix(r.URL.Path, profilesPath)
	profile := pprof.Lookup(name)
	switch {
	case name == "":
		plain(w)
		fmt.Fprintln(w, strings.Join(profileNames(), "\n"))
		return
	case profile == nil && name != cpuProfile:
		http.Error(w, "no such profile: use one of "+strings.Join(profileNames(), ", "), http.StatusNotFound)
		return
	}
	level, err := number(r, "debug", 0, 2, 0)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	seconds, err := number(r, "seconds", 1, maxSeconds, defaultSeconds)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !p.writing.TryLock() {
		http.Error(w, "another profile is being written: try again later", http.StatusTooManyRequests)
		return
	}
	defer p.writing.Unlock()
	switch {
	case r.Method == http.MethodHead:
	case profile == nil:
		p.cpu(w, r, time.Duration(seconds)*time.Second)
	default:
		if name == "heap" && r.URL.Query().Get("gc") != "" {
			runtime.GC()
		}
		if level > 0 {
			plain(w)
		} else {
			binary(w, name)
		}
		_ = profile.WriteTo(w, level) // the client has gone
	}
}

// cpu writes the CPU profile of a time, which ends early if the client goes.
func (p *profiles) cpu(w http.ResponseWriter, r *http.Request, d time.Duration) {
	binary(w, cpuProfile)
	if err := pprof.StartCPUProfile(w); err != nil { // another part of the process makes one
		w.Header().Del("Content-Disposition")
		http.Error(w, "the CPU profile cannot start: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer pprof.StopCPUProfile()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
}

func profileNames() []string {
	names := []string{cpuProfile}
	for _, p := range pprof.Profiles() {
		names = append(names, p.Name())
	}
	slices.Sort(names)
	return names
}

// number returns a parameter of the request, or without it otherwise.
func number(r *http.Request, name string, least, most, otherwise int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("the parameter %s is not valid: use %d to %d", name, least, most)
	}
	return n, nil
}

func plain(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/plain; charset=utf-8") }

func binary(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
}
