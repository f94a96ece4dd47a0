package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/config"
	websiteconfig "github.com/controllerkit/controllerkit/examples/website/config"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/localserver"
)

// A world has the cluster, the services and the replicas of one part of a run.
type world struct {
	*soaking
	cluster  *localserver.Server
	client   *client // of the users, over the load balancer
	rng      *rand.Rand
	slots    []*slot
	dns      *dns.Server
	billing  *billing.Server
	replicas []*replica

	mu     sync.Mutex // guards the counts of the state, which replicas and faults write
	broken []string   // the violations that replicas and faults have found
}

func (w *world) count(counts map[string]int, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts[name]++
}

func (w *world) breaks(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// soak runs until the hours are over or ctx is done.
func (s *soaking) soak(ctx context.Context, out io.Writer) (err error) {
	limit := time.Duration(s.hours * float64(time.Hour))
	if s.Elapsed >= limit {
		return nil
	}
	s.Parts++
	if err := s.save(); err != nil {
		return err
	}
	w := &world{
		soaking: s, rng: rand.New(rand.NewPCG(s.seed, uint64(s.Parts))), slots: slots(s.objects),
		dns: new(dns.Server), billing: new(billing.Server),
	}
	// The default range has 254 addresses, and each website needs one.
	w.cluster, err = localserver.Start(ctx, s.controlplane, "-etcds", fmt.Sprint(s.etcds), "-servers", fmt.Sprint(s.servers), "-commands",
		"--", "--service-cluster-ip-range=10.96.0.0/12")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.cluster.Stop()) }()
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	stop, err := w.prepare(ctx)
	if err != nil {
		return ignore(ctx, err)
	}
	defer stop()
	failed := make(chan error, len(w.replicas))
	for _, r := range w.replicas {
		running.Go(func() {
			if err := r.run(ctx); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	err = w.cycles(ctx, limit, out)
	cancel()
	running.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return ignore(ctx, err)
	}
}

// ignore returns nil for the errors of an interruption.
func ignore(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// prepare installs the examples, starts the services and makes the replicas.
func (w *world) prepare(ctx context.Context) (stop func(), err error) {
	admin := w.cluster.Config()
	if err := lab.Install(ctx, admin, config.Files, "crd.yaml", "rbac.yaml"); err != nil {
		return nil, err
	}
	if err := lab.Install(ctx, admin, websiteconfig.Files, "crd.yaml", "rbac.yaml"); err != nil {
		return nil, err
	}
	d, err := dynamic.NewForConfig(admin)
	if err != nil {
		return nil, err
	}
	w.client = &client{Interface: d}
	names, err := lab.Serve(w.dns)
	if err != nil {
		return nil, err
	}
	accounts, err := lab.Serve(w.billing)
	if err != nil {
		names.Close()
		return nil, err
	}
	stop = func() {
		w.end()
		names.Close()
		accounts.Close()
	}
	for n := range 2 * w.options.replicas {
		// The first replica uses the load balancer, the others one server each.
		cfg := admin
		if n/2 > 0 {
			if cfg, err = w.cluster.ConfigOf(fmt.Sprintf("server-%d", n/2%w.servers)); err != nil {
				return stop, err
			}
		}
		r := &replica{name: fmt.Sprintf("website-%d", n/2), part: w.Parts, bin: w.website, exited: w.exited}
		if r.address, err = lab.FreeAddress(); err != nil {
			return stop, err
		}
		system, account := "website-system", "website-operator"
		if n%2 == 1 {
			r.name, r.bin = fmt.Sprintf("tenant-%d", n/2), w.tenant
			system, account = "tenant-system", "tenant-controller"
		}
		kubeconfig, err := lab.LimitedKubeconfig(ctx, cfg, system, account, filepath.Dir(w.cluster.Kubeconfig), nil)
		if err != nil {
			return stop, err
		}
		r.args = func() []string {
			if n%2 == 0 {
				return []string{"-kubeconfig", kubeconfig, "-dns", names.URL, "-lease-namespace", system}
			}
			// Its configuration changes with each start.
			return []string{
				"-kubeconfig", kubeconfig, "-billing-url", accounts.URL, "-leader-elect", "-leader-election-namespace", system,
				"-workers", fmt.Sprint(2 + time.Now().UnixNano()%5),
			}
		}
		w.replicas = append(w.replicas, r)
	}
	return stop, nil
}

// exited counts a process that ended by itself, as the loser of a Lease does.
func (w *world) exited(r *replica, process *lab.Process) {
	output := process.Output()
	for _, sign := range []string{"panic:", "fatal error:", "DATA RACE"} {
		if strings.Contains(output, sign) {
			w.breaks("%s: %s\n%s", r.name, sign, process.Tail(60))
			return
		}
	}
	w.count(w.Exits, r.name)
	w.log("%s exited with code %d: %s", r.name, process.ExitCode(), process.Tail(1))
}

// log adds a line to the file of the events.
func (w *world) log(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := os.OpenFile(w.path("events.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		w.broken = append(w.broken, err.Error())
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%s %s\n", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// cycles runs one cycle after the other, until the hours are over or ctx is done.
func (w *world) cycles(ctx context.Context, limit time.Duration, out io.Writer) error {
	if err := w.client.seed(ctx, w.slots, w.users, w.rng); err != nil {
		return fmt.Errorf("create the objects: %w", err)
	}
	known, err := w.check(ctx, max(w.bound, 15*time.Minute), nil)
	if err != nil {
		return err
	}
	for ctx.Err() == nil && w.Elapsed < limit {
		begin := time.Now()
		err := w.disturb(ctx)
		if err == nil {
			known, err = w.check(ctx, w.bound, known)
		}
		if err == nil {
			err = w.measure(ctx)
		}
		w.Elapsed += time.Since(begin)
		if err := errors.Join(err, w.save()); err != nil {
			return err
		}
		fmt.Fprintln(out, w.line())
	}
	return nil
}

// disturb is the first part of a cycle: changes and faults. It returns when all faults have
// ended and the outcome of each change is known.
func (w *world) disturb(ctx context.Context) error {
	churn, cancel := context.WithTimeout(ctx, w.churn)
	defer cancel()
	late, cancel := context.WithTimeout(ctx, w.churn+w.bound)
	defer cancel()
	long := w.Checks%20 == 19 // faults that cost a leader its Lease, and so its process
	var wg sync.WaitGroup
	var changeErr, clusterErr error
	seeds := [3]*rand.Rand{}
	for i := range seeds {
		seeds[i] = rand.New(rand.NewPCG(w.rng.Uint64(), 0))
	}
	wg.Go(func() { changeErr = w.client.churn(churn, late, w.slots, w.users, seeds[0]) })
	wg.Go(func() { clusterErr = w.clusterFaults(churn, seeds[1], long) })
	wg.Go(func() { w.replicaFaults(churn, seeds[2], long) })
	wg.Wait()
	w.Changes += int(w.client.changes.Swap(0))
	if changeErr != nil && ctx.Err() == nil {
		w.breaks("%v", changeErr)
	}
	return clusterErr
}

// clusterFaults stops, kills, pauses and cuts off processes of the cluster, one after the
// other.
func (w *world) clusterFaults(ctx context.Context, rng *rand.Rand, long bool) error {
	for ctx.Err() == nil {
		rest(ctx, between(rng, 1, 4))
		kinds := [][]string{{"pause", "resume"}, {"kill", "start", "await"}, {"stop", "start", "await"}, {"cut", "join"}}
		name := fmt.Sprintf("server-%d", rng.IntN(w.servers))
		if w.etcds > 1 && rng.IntN(2) == 0 {
			name, kinds = fmt.Sprintf("etcd-%d", rng.IntN(w.etcds)), kinds[:3]
		}
		for i, verb := range kinds[rng.IntN(len(kinds))] {
			w.log("%s %s", verb, name)
			if err := w.cluster.Do(verb + " " + name); err != nil {
				return err
			}
			if i == 0 {
				w.count(w.Faults, verb+" "+name)
				rest(ctx, hold(rng, long))
			}
		}
	}
	return nil
}

// replicaFaults kills, freezes and stops replicas, and lets the services fail, one after the
// other. The first replica of each operator lives on.
func (w *world) replicaFaults(ctx context.Context, rng *rand.Rand, long bool) {
	defer w.end()
	for ctx.Err() == nil {
		rest(ctx, between(rng, 1, 4))
		r := w.replicas[rng.IntN(len(w.replicas))]
		first := strings.HasSuffix(r.name, "-0")
		switch kind := rng.IntN(5); {
		case kind == 0 && !first:
			w.log("kill %s", r.name)
			w.count(w.Faults, "kill "+r.name)
			_ = r.end(func(p *lab.Process) error { p.Kill(); return nil })
		case kind == 1 && !first:
			app, _, _ := strings.Cut(r.name, "-")
			w.log("restart %s", app)
			w.count(w.Faults, "rolling restart of "+app)
			for _, r := range w.replicas {
				if !strings.HasPrefix(r.name, app) || strings.HasSuffix(r.name, "-0") {
					continue
				}
				if err := r.end((*lab.Process).Stop); err != nil {
					w.count(w.Exits, r.name+" with an error after SIGTERM")
					w.log("%s: %v", r.name, err)
					if strings.Contains(err.Error(), "did not stop within") {
						w.breaks("%s: %v", r.name, err)
					}
				}
				r.ready(ctx)
			}
		case kind <= 2:
			w.log("freeze %s", r.name)
			w.count(w.Faults, "freeze "+r.name)
			r.freeze(ctx, hold(rng, long && !first))
		case kind == 3:
			w.count(w.Faults, "DNS service")
			w.dns.Fail([]int{0, http.StatusServiceUnavailable}[rng.IntN(2)])
			w.dns.Slow(between(rng, 0, 3))
			rest(ctx, hold(rng, false))
		default:
			w.count(w.Faults, "billing service")
			mode := []billing.Mode{billing.Fail, billing.Hang, billing.Slow}[rng.IntN(3)]
			if err := w.billing.SetMode(mode, between(rng, 0, 3)); err != nil {
				w.breaks("%v", err)
			}
			rest(ctx, hold(rng, false))
		}
		w.end()
	}
}

// end ends the faults of the services.
func (w *world) end() {
	w.dns.Fail(0)
	w.dns.Slow(0)
	_ = w.billing.SetMode(billing.OK, 0) // a known mode
}

// hold returns the time that a fault lasts. A leader loses its Lease after 10s without the
// API server.
func hold(rng *rand.Rand, long bool) time.Duration {
	if long {
		return between(rng, 10, 25)
	}
	return between(rng, 1, 6)
}

func between(rng *rand.Rand, least, most int64) time.Duration {
	return time.Duration(least)*time.Second + time.Duration(rng.Int64N((most-least)*int64(time.Second)))
}

// check is the second part of a cycle. It returns the differences that are still there after
// the bound, which are a violation unless they were known.
func (w *world) check(ctx context.Context, bound time.Duration, known []string) ([]string, error) {
	since := time.Now()
	rest(ctx, w.quiet)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var snap snapshot
		var problems []string
		if objects, err := look(ctx, w.client); err != nil {
			problems = []string{"the cluster cannot be read: " + err.Error()}
		} else {
			var sites, teams []wanted
			for _, s := range w.slots {
				s.unsure = false // all faults have ended
				switch {
				case s.exists && s.resource == websites:
					sites = append(sites, s.wanted)
				case s.exists:
					teams = append(teams, s.wanted)
				}
			}
			snap = snapshot{objects: objects, records: w.dns.Records(), accounts: w.billing.Accounts()}
			problems = judge(sites, teams, snap)
		}
		if len(problems) > 0 && time.Since(since) < bound {
			w.log("not settled: %d differences, such as %s", len(problems), problems[0])
			rest(ctx, 5*time.Second)
			continue
		}
		w.Checks++
		w.Settled = append(w.Settled, time.Since(since).Seconds())
		w.mu.Lock()
		broken := w.broken
		w.broken = nil
		w.mu.Unlock()
		fresh := slices.DeleteFunc(slices.Clone(problems), func(p string) bool { return slices.Contains(known, p) })
		if len(fresh) > 0 {
			broken = append(broken, fmt.Sprintf("%d differences %v after the last change and fault, such as", len(fresh), bound))
			broken = append(broken, fresh[:min(len(fresh), 5)]...)
		}
		if len(broken) == 0 {
			return problems, nil
		}
		return problems, w.violate(strings.Join(broken, "\n"), strings.Join(fresh, "\n")+"\n\n"+w.evidence(fresh, snap))
	}
}

// evidence returns the objects of the first differences, and what the replicas have printed.
func (w *world) evidence(problems []string, snap snapshot) string {
	var text strings.Builder
	for _, p := range problems[:min(len(problems), 5)] {
		words := strings.Fields(p)
		if obj := snap.objects[words[0]][strings.TrimSuffix(words[1], ":")]; obj != nil {
			data, err := json.MarshalIndent(obj, "", " ")
			fmt.Fprintf(&text, "%s\n%v\n", data, errors.Join(err))
		}
	}
	for _, r := range w.replicas {
		text.WriteString(r.tail())
	}
	return text.String()
}

// measure samples the replicas.
func (w *world) measure(ctx context.Context) error {
	var all []sample
	for _, r := range w.replicas {
		m, err := r.sample(ctx, w.Elapsed.Minutes())
		if err != nil {
			w.log("sample %s: %v", r.name, err) // it starts again at the moment
			continue
		}
		all = append(all, m)
	}
	return w.keep(all)
}

// line returns the state in one line.
func (w *world) line() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	exist := 0
	for _, s := range w.slots {
		if s.exists {
			exist++
		}
	}
	var heaps []string
	for _, m := range w.samples[max(0, len(w.samples)-len(w.replicas)):] {
		heaps = append(heaps, fmt.Sprintf("%s %.0f/%.0f", m.Process, m.Values[0], m.Values[1]))
	}
	return fmt.Sprintf("%.1f min: %d objects, %d changes, %d faults, %d exits, settled in %.0fs, %d violations; RSS/heap MiB: %s",
		w.Elapsed.Minutes(), exist, w.Changes, total(w.Faults), total(w.Exits), w.Settled[len(w.Settled)-1], len(w.Violations), strings.Join(heaps, ", "))
}

func total(counts map[string]int) (n int) {
	for c := range maps.Values(counts) {
		n += c
	}
	return n
}
