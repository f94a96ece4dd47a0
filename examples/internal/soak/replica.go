package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testprocess"
)

// A replica is a process of an operator, which starts again whenever it ends, as in a Pod.
type replica struct {
	name    string // such as website-0
	part    int    // of the run
	bin     string
	address string
	args    func() []string
	exited  func(r *replica, process *lab.Process) // after it ended by itself

	mu      sync.Mutex // guards the fields below
	process *lab.Process
	number  int  // of the process
	asked   bool // to end
}

// run keeps the replica running until ctx is done. Then it stops the process.
func (r *replica) run(ctx context.Context) error {
	for {
		process, err := lab.StartProcess(r.bin, append([]string{"-listen", r.address}, r.args()...)...)
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.process, r.asked = process, false
		r.number++
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			process.Kill()
			return nil
		case <-process.Ended():
		}
		r.mu.Lock()
		asked := r.asked
		r.mu.Unlock()
		if !asked {
			r.exited(r, process)
		}
		rest(ctx, time.Second)
	}
}

// end ends the process with f. If there is none, f is not called.
func (r *replica) end(f func(*lab.Process) error) error {
	r.mu.Lock()
	process := r.process
	r.asked = true
	r.mu.Unlock()
	if process == nil {
		return nil
	}
	select {
	case <-process.Ended():
		return nil
	default:
		return f(process)
	}
}

// freeze stops the process with SIGSTOP for some time.
func (r *replica) freeze(ctx context.Context, d time.Duration) {
	r.mu.Lock()
	process := r.process
	r.mu.Unlock()
	if process == nil || testprocess.Freeze(process.OS()) != nil {
		return // it has ended by itself
	}
	rest(ctx, d)
	_ = testprocess.Thaw(process.OS()) // as above
}

// ready waits until the replica is ready, or ctx is done.
func (r *replica) ready(ctx context.Context) {
	for ctx.Err() == nil {
		if _, err := r.get(ctx, "/readyz"); err == nil {
			return
		}
		rest(ctx, 500*time.Millisecond)
	}
}

func (r *replica) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.address+path, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Close = true // so that the connection of the last sample is not counted
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(body), err
}

// tail returns the last lines of the process.
func (r *replica) tail() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil {
		return r.name + " has not started\n"
	}
	return fmt.Sprintf("%s#%d:\n%s\n", r.name, r.number, r.process.Tail(40))
}

// sample returns what the process uses.
func (r *replica) sample(ctx context.Context, minute float64) (sample, error) {
	r.mu.Lock()
	process := r.process
	s := sample{Minute: minute, Process: fmt.Sprintf("%s#%d.%d", r.name, r.part, r.number)}
	r.mu.Unlock()
	text, err := r.get(ctx, "/metrics")
	if err != nil {
		return s, err
	}
	value := map[string]float64{}
	series := 0.0
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if line := lines.Text(); line != "" && line[0] != '#' {
			series++
			name, text, _ := strings.Cut(line, " ")
			value[name], _ = strconv.ParseFloat(text, 64)
		}
	}
	dir := fmt.Sprintf("/proc/%d/", process.OS().Pid)
	memory, err := os.ReadFile(dir + "statm")
	if err != nil {
		return s, err
	}
	pages := strings.Fields(string(memory))
	if len(pages) < 2 {
		return s, fmt.Errorf("%sstatm is %q", dir, memory)
	}
	resident, err := strconv.ParseFloat(pages[1], 64)
	if err != nil {
		return s, err
	}
	files, err := os.ReadDir(dir + "fd")
	if err != nil {
		return s, err
	}
	connections := 0.0
	for _, f := range files {
		if target, err := os.Readlink(dir + "fd/" + f.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			connections++
		}
	}
	// The next collection begins at twice the live heap of the last one.
	live := value["go_memstats_next_gc_bytes"] / 2
	s.Values = [len(measures)]float64{resident * float64(os.Getpagesize()) / (1 << 20), live / (1 << 20), value["go_goroutines"], series, connections}
	if live == 0 || value["go_goroutines"] == 0 {
		return s, fmt.Errorf("%s: the metrics of the Go runtime are missing", r.name)
	}
	return s, nil
}
