package metrics_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/reconcile"
)

// A world is a fleet of replicas, as Prometheus sees it each step. Its alerts must fire as
// listed, and no other alert may fire.
type world struct {
	name     string
	steps    int  // 0 means 150
	minutes  int  // of a step; 0 means 1
	down     bool // Prometheus is down if a sample is missing; otherwise the scrape failed
	replicas []replica
	fires    []firing
}

// A firing is an alert that fires at all steps from the first to the last, and at no other step
// that is more than the slack away from them.
type firing struct {
	alert       string
	first, last int
	labels      map[string]string
}

const slack = 20

// A replica has its state at each step.
type replica struct {
	instance string
	at       func(step int) state
}

// A state is what a replica did in a step, and how it is at its end. The zero value is a process
// that is not there, or that is not scraped.
type state struct {
	scraped bool
	began   bool // the process is new: its counters begin again

	leads, blind bool // blind: it cannot use the API server
	acquired     bool

	calls         map[string]float64 // success, error, rejected, forbidden or terminal, in this step
	settled, late float64            // calls that settle events, in this step
	failing       map[string]float64 // keys
	objects       float64
	depth         float64

	sharded          bool
	owned, ownerless float64
}

// standby is the state of a replica that waits for the leadership.
func standby() state { return state{scraped: true} }

// leader is the state of a replica that works: it has 200 objects and makes the calls, which
// succeed, in a step.
func leader(calls float64) state {
	return state{scraped: true, leads: true, calls: map[string]float64{"success": calls}, settled: calls, objects: 200}
}

// with adds failing keys and calls to a leader.
func (s state) with(result string, calls, keys float64) state {
	s.calls, s.failing = maps.Clone(s.calls), maps.Clone(s.failing)
	if s.failing == nil {
		s.failing = map[string]float64{}
	}
	if s.calls == nil {
		s.calls = map[string]float64{}
	}
	s.calls[result] += calls
	s.failing[result] += keys
	return s
}

// job is the value of the label of the series.
func (w world) job() string {
	if len(w.fires) > 0 {
		return "shop"
	}
	return w.name
}

// series returns the values of all series by their names. Each family of the alerts has some.
func (w world) series() map[string][]float64 {
	all := map[string][]float64{}
	for _, r := range w.replicas {
		began := 0.0
		counters, target := map[string]float64{}, fmt.Sprintf("{job=%q,instance=%q,", w.job(), r.instance)
		for n := range w.steps + 1 {
			s := r.at(n)
			if s.began {
				clear(counters)
				began = float64(n)
			}
			put := func(name, labels string, v float64) {
				name += target + labels + "}"
				if all[name] == nil {
					all[name] = slices.Repeat([]float64{math.NaN()}, w.steps+1)
				}
				if s.scraped {
					all[name][n] = v
				}
			}
			count := func(name, labels string, v float64) {
				counters[name+labels] += v
				put(name, labels, counters[name+labels])
			}
			running, seen := 0.0, 1.0
			if s.leads || s.sharded {
				running = 1
			}
			if s.blind {
				seen = 0
			}
			const controller, name, lease = `controller="orders"`, `name="orders"`, `name="shop/orders"`
			for _, result := range []string{"success", "error", "rejected", "forbidden", "terminal", "conflict"} {
				count("controller_reconcile_total", controller+`,result="`+result+`"`, s.calls[result])
				if result != "success" {
					put("controller_failing_keys", controller+`,result="`+result+`"`, s.failing[result])
				}
			}
			const latency = "controller_reconcile_latency_seconds_"
			count(latency+"bucket", controller+`,le="60"`, s.settled-s.late)
			count(latency+"bucket", controller+`,le="+Inf"`, s.settled)
			count(latency+"count", controller, s.settled)
			count("controller_reconcile_held_total", controller, 0)
			put("process_start_time_seconds", "", began)
			put("controller_workers", controller, 4*running)
			put("controller_objects", controller, s.objects*running)
			put("workqueue_depth", name, s.depth)
			put("workqueue_longest_running_processor_seconds", name, 0)
			count("controller_consistency_wait_duration_seconds_count", `result="timeout"`, 0)
			put("controller_informer_last_event_age_seconds", `name="orders"`, 30)
			count("controller_informer_mutations_total", name, 0)
			put("controller_informer_malformed_objects", name, 0)
			put("controller_migration_complete", `definition="orders.example.com"`, 1)
			put("controller_finalizer_blocked_oldest_seconds", `finalizer="example.com/f",step="drain"`, 0)
			if s.sharded {
				put("controller_shards_owned", lease, s.owned)
				put("controller_shards_ownerless", lease, s.ownerless)
				put("controller_shards_surplus", lease, 0)
				continue
			}
			leads, acquired := 0.0, 0.0
			if s.leads {
				leads = 1
			}
			if s.acquired {
				acquired = 1
			}
			put("leader_election_master_status", lease, leads)
			put("controller_leader_seen", lease, seen)
			count("controller_leader_transitions_total", lease, acquired)
		}
	}
	return all
}

// idle returns the instances as standbys, from the first step to the last.
func idle(instances ...string) (all []replica) {
	for _, instance := range instances {
		all = append(all, replica{instance, func(int) state { return standby() }})
	}
	return all
}

// led returns a leader a, and the standbys b and c.
func led(at func(step int) state) []replica {
	return append(idle("b", "c"), replica{"a", at})
}

// updated returns a fleet of three replicas that a rolling update replaces at the step 60, one in
// a minute and the leader last. work is the state of the leader, of the old and the new release.
func updated(work func(step int, old bool) state) (all []replica) {
	const begin = 60
	for n, instance := range []string{"b", "c", "a"} {
		all = append(all,
			replica{instance, func(step int) state {
				switch {
				case step >= begin+n:
					return state{}
				case instance == "a":
					return work(step, true)
				default:
					return standby()
				}
			}},
			replica{"new-" + instance, func(step int) state {
				switch {
				case step < begin+n:
					return state{}
				case instance == "b" && step >= begin+2:
					s := work(step, false)
					s.acquired = step == begin+2
					return s
				default:
					return standby()
				}
			}})
	}
	return all
}

// sharded returns three replicas that own the eight shards of a group.
func sharded(at func(replica, step int) state) (all []replica) {
	for n, instance := range []string{"a", "b", "c"} {
		all = append(all, replica{instance, func(step int) state {
			s := at(n, step)
			s.sharded = true
			return s
		}})
	}
	return all
}

// shards is the state of a replica that owns some of the shards.
func shards(owned float64, calls float64) state {
	s := leader(calls)
	s.owned, s.objects = owned, 25*owned
	return s
}

// retries returns the calls in a minute of a key that began to fail n minutes ago, with the rate
// limiter of package queue: 5ms, doubling to 5min.
func retries(n int) float64 {
	calls, at, delay := 0.0, 0.0, 0.005
	for at < float64(n+1)*60 {
		if at >= float64(n)*60 {
			calls++
		}
		at += delay
		delay = min(2*delay, 300)
	}
	return calls
}

// rejections is as retries, for a key with the class rejected: 1s, doubling to 10min, and up to
// half of it more.
func rejections(n int) float64 {
	calls, at, delay := 0.0, 0.0, 1.0
	for at < float64(n+1)*60 {
		if at >= float64(n)*60 {
			calls++
		}
		at += 1.25 * delay
		delay = min(2*delay, 600)
	}
	return calls
}

func worlds() []world {
	const slow, normal = 5.0 / 60, 40.0 / 60 // calls a minute
	full := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "a", errors.New("exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=9, limited: count/configmaps=9"))
	orders := map[string]string{"job": "shop", "controller": "orders"}
	lease := map[string]string{"job": "shop", "name": "shop/orders"}
	one := func(result string, calls func(int) float64) func(step int) state {
		return func(step int) state {
			if step < 60 {
				return leader(normal)
			}
			return leader(normal).with(result, calls(step-60), 1)
		}
	}
	return []world{
		{name: "a healthy fleet", replicas: led(func(int) state { return leader(normal) })},
		{name: "no traffic", replicas: led(func(int) state { return leader(0) })},
		{name: "no replica, before and after", replicas: []replica{{"a", func(step int) state {
			if step < 30 || step > 90 {
				return state{}
			}
			return leader(normal)
		}}}},
		{name: "gaps between evaluations", down: true, replicas: led(func(step int) state {
			s := leader(normal)
			s.scraped = step%40 < 30
			return s
		})},
		{name: "scrape gaps", replicas: []replica{
			{"a", func(step int) state {
				s := leader(normal)
				s.scraped = step%30 < 18 // all replicas in turn, and together
				return s
			}},
			{"b", func(step int) state { return state{scraped: step%30 > 10 && step%30 < 26} }},
			{"c", func(step int) state { return state{scraped: step%7 > 4} }},
		}},
		{name: "the leader is one replica of three, and is not scraped any more", replicas: led(func(step int) state {
			s := leader(normal)
			s.scraped = step < 60
			return s
		})},
		{name: "one replica of three ends all the time", replicas: append(idle("b"),
			replica{"a", func(int) state { return leader(normal) }},
			replica{"c", func(step int) state { return state{scraped: step%5 < 2, began: step%5 == 0} }})},
		{name: "the calls of the only replica do not return, so that its probe restarts it", replicas: []replica{{"a", func(step int) state {
			s := leader(1)
			s.began = step >= 60 && step%6 == 0
			return s
		}}}, fires: []firing{{"ControllerRestarting", 78, 150, map[string]string{"job": "shop", "instance": "a"}}}},
		{name: "the only replica never works, because its first lists do not end", replicas: []replica{{"a", func(step int) state {
			return state{scraped: step%5 < 2, began: step%5 == 0}
		}}}, fires: []firing{{"ControllerRestarting", 21, 150, map[string]string{"job": "shop", "instance": "a"}}}},
		{name: "the only replica ends three times in an hour", replicas: []replica{{"a", func(step int) state {
			s := leader(normal)
			s.began = step > 0 && step%20 == 0
			return s
		}}}},
		{name: "one replica of three cannot use the API server", replicas: append(idle("b"),
			replica{"a", func(int) state { return leader(normal) }},
			replica{"c", func(step int) state { return state{scraped: true, blind: step > 60} }})},
		{
			// Its objects are called once, and nine of them fail as they did before.
			name: "a restart", replicas: led(func(step int) state {
				s := leader(normal).with("rejected", 9*6.0/60, 9)
				switch {
				case step == 60:
					return state{}
				case step == 61:
					s = leader(1500).with("rejected", 9*6, 9)
					s.began, s.acquired, s.settled, s.depth = true, true, normal, 700
				}
				return s
			}),
		},
		{
			// Nobody knows when the objects of the first list changed, so their calls settle no event.
			name: "a cold start that takes an hour", replicas: []replica{{"a", func(step int) state {
				s := leader(normal)
				s.objects = 10_000
				if step < 60 {
					s.calls["success"] += 10_000 / 60
					s.depth = 10_000 - 10_000/60*float64(step)
				}
				return s
			}}},
		},
		{
			name: "a takeover whose first list takes an hour", replicas: append(idle("c"),
				replica{"a", func(step int) state {
					if step >= 60 {
						return state{}
					}
					return leader(normal)
				}},
				replica{"b", func(step int) state {
					if step < 61 {
						return state{scraped: true, blind: step == 60}
					}
					s := leader(normal)
					s.acquired = step == 61
					s.depth = max(0, 10_000-10_000/60*float64(step-61))
					return s
				}}),
		},
		{
			name: "a rolling update", replicas: updated(func(step int, _ bool) state {
				return leader(normal).with("error", 12.0/60, 1).with("rejected", 6.0/60, 2)
			}),
		},
		{name: "a user's typo that the API server rejects", replicas: led(one("rejected", rejections))},
		{name: "a user's typo that is terminal", replicas: led(one("terminal", func(n int) float64 { return max(0, float64(1-n)) }))},
		{
			// After the update, so that it is more than before a start.
			name: "a user's typo after a rolling update", replicas: updated(func(step int, _ bool) state {
				if step < 80 {
					return leader(normal)
				}
				return leader(normal).with("rejected", rejections(step-80), 1)
			}),
		},
		{
			// 19 of 200 objects.
			name: "many users' typos", replicas: led(func(step int) state {
				return leader(normal).with("rejected", 19*6.0/60, 19)
			}),
		},
		{
			// His namespace has a quota. Its 403 is no missing role.
			name: "a tenant with a full quota", steps: 190, replicas: led(func(step int) state {
				if step < 60 {
					return leader(slow)
				}
				return leader(slow).with(reconcile.Class(full), 10*rejections(step-60), 10)
			}),
		},
		{
			name: "one failure at 5 calls an hour", replicas: led(func(step int) state {
				s := leader(slow)
				switch {
				case step >= 60 && step < 63: // retried until it succeeds
					return s.with("error", retries(step-60), 1)
				case step == 63:
					s.settled, s.late = s.settled+1, 1
				}
				return s
			}),
		},
		{
			name: "one failing object of 200", replicas: led(func(step int) state {
				if step < 60 {
					return leader(slow)
				}
				return leader(slow).with("error", retries(step-60), 1)
			}),
		},
		{
			name: "all requests about Leases fail", replicas: []replica{
				{"a", func(step int) state {
					if step < 60 {
						return leader(normal)
					}
					return state{scraped: true, blind: true}
				}},
				{"b", func(step int) state { return state{scraped: true, blind: step >= 60} }},
			},
			fires: []firing{{"ControllerNoLeader", 63, 150, lease}},
		},
		{
			name: "the only object fails", replicas: led(func(step int) state {
				s := leader(slow)
				s.objects = 1
				if step < 60 {
					return s
				}
				s.calls = map[string]float64{}
				return s.with("error", retries(step-60), 1)
			}),
			fires: []firing{{"ControllerObjectsFailing", 71, 150, orders}},
		},
		{
			name: "another service is down", replicas: led(func(step int) state {
				if step < 60 {
					return leader(10)
				}
				return state{scraped: true, leads: true, objects: 200}.with("error", 30*12.0/60+10, 30)
			}),
			fires: []firing{{"ControllerErrorBudgetBurnFast", 75, 150, orders}, {"ControllerErrorBudgetBurnSlow", 85, 150, orders}, {"ControllerObjectsFailing", 71, 150, orders}},
		},
		{
			name: "many conflicts, and a key that fails each minute", replicas: led(func(step int) state {
				s := leader(100).with("conflict", 100, 0)
				if step > 60 {
					s = s.with("error", 1, 1)
				}
				return s
			}),
		},
		{
			name: "a webhook responds with 409 to each write", replicas: led(func(step int) state {
				if step < 60 {
					return leader(normal)
				}
				return leader(normal).with("conflict", 100*6.0/60, 100)
			}),
			fires: []firing{{"ControllerObjectsFailing", 71, 150, orders}},
		},
		{
			name: "another service is away for a minute", replicas: led(func(step int) state {
				if step != 60 {
					return leader(normal)
				}
				return state{scraped: true, leads: true, objects: 200}.with("error", 200*retries(0), 200)
			}),
			fires: []firing{{"ControllerErrorBudgetBurnSlow", 85, 150, orders}},
		},
		{
			name: "a release whose objects are all rejected", replicas: updated(func(step int, old bool) state {
				if old {
					return leader(normal)
				}
				return state{scraped: true, leads: true, objects: 200}.with("rejected", 200*6.0/60, 200)
			}),
			fires: []firing{{"ControllerObjectsFailing", 73, 150, orders}},
		},
		{
			// Ten of 200 objects have a field that it sends wrong. Two were rejected before.
			name: "a release of which some objects are rejected", steps: 200, replicas: updated(func(step int, old bool) state {
				if old {
					return leader(normal).with("rejected", 2*6.0/60, 2)
				}
				return leader(normal).with("rejected", 10*6.0/60, 10)
			}),
			fires: []firing{{"ControllerObjectsFailing", 73, 120, orders}}, // until an hour after the start
		},
		{
			name: "the only object is rejected after a release", replicas: updated(func(step int, old bool) state {
				s := leader(slow)
				if !old {
					s = s.with("rejected", 6.0/60, 1)
				}
				s.objects = 1
				return s
			}),
			fires: []firing{{"ControllerObjectsFailing", 73, 150, orders}},
		},
		{
			name: "all calls are late", replicas: led(func(step int) state {
				s := leader(2)
				if step >= 60 {
					s.late = s.settled
				}
				return s
			}),
			fires: []firing{{"ControllerLatencyBudgetBurnFast", 75, 150, orders}, {"ControllerLatencyBudgetBurnSlow", 85, 150, orders}},
		},
		{
			name: "all calls are late at 5 calls an hour", steps: 360, replicas: led(func(step int) state {
				s := leader(slow)
				if step >= 60 {
					s.late = s.settled
				}
				return s
			}),
			fires: []firing{{"ControllerLatencyBudgetBurnFast", 190, 360, orders}, {"ControllerLatencyBudgetBurnSlow", 205, 360, orders}},
		},
		{name: "shards", replicas: sharded(func(replica, step int) state { return shards(float64(2+replica%2*2), normal) })},
		{
			name: "shards, one replica of three is not scraped", replicas: sharded(func(replica, step int) state {
				s := shards(3, normal)
				s.scraped = replica != 2 || step < 60
				return s
			}),
		},
		{
			name: "shards, one replica of three cannot use the API server", replicas: sharded(func(replica, step int) state {
				switch {
				case step < 60:
					return shards(3, normal)
				case replica == 2:
					s := shards(0, 0)
					s.ownerless = 8
					return s
				default:
					return shards(4, normal)
				}
			}),
		},
		{
			name: "shards, one replica of three crashes", replicas: sharded(func(replica, step int) state {
				switch {
				case step < 60:
					return shards(3, normal)
				case replica == 2:
					return state{}
				case step == 60:
					s := shards(3, normal)
					s.ownerless = 2
					return s
				default:
					return shards(4, normal)
				}
			}),
		},
		{
			name: "shards, a rolling update", replicas: sharded(func(replica, step int) state {
				s := shards(3, normal)
				if step == 60+5*replica {
					s = shards(0, 0)
					s.ownerless, s.began = 8, true
				}
				return s
			}),
		},
		{
			name: "shards, all requests about Leases fail", replicas: sharded(func(replica, step int) state {
				if step < 60 {
					return shards(3, normal)
				}
				s := shards(0, 0)
				s.ownerless = 8
				return s
			}),
			fires: []firing{{"ControllerShardsOwnerless", 63, 150, lease}},
		},
		{
			name: "shards, one replica of three fails for all its objects", replicas: sharded(func(replica, step int) state {
				if step < 60 || replica != 2 {
					return shards(3, 10)
				}
				s := shards(2, 0)
				s.settled = 0
				return s.with("error", 50*12.0/60, 50)
			}),
			fires: []firing{{"ControllerErrorBudgetBurnFast", 90, 150, orders}, {"ControllerErrorBudgetBurnSlow", 95, 150, orders}, {"ControllerObjectsFailing", 71, 150, orders}},
		},
		{
			name: "shards, a user's typo", replicas: sharded(func(replica, step int) state {
				if step < 60 || replica != 2 {
					return shards(3, normal)
				}
				return shards(2, normal).with("rejected", rejections(step-60), 1)
			}),
		},
		// Tickets.
		{
			name: "days with a user's typo", steps: 400, minutes: 10, replicas: led(func(int) state {
				return leader(10*normal).with("rejected", 1, 1)
			}),
		},
		{
			name: "days at 5 calls an hour with one failure", steps: 400, minutes: 10, replicas: led(func(step int) state {
				if step == 200 {
					return leader(10*slow).with("error", retries(0)+retries(1), 0)
				}
				return leader(10 * slow)
			}),
		},
		{
			name: "days with one failing object", steps: 400, minutes: 10, replicas: led(func(step int) state {
				if step < 150 {
					return leader(10 * normal)
				}
				return leader(10*normal).with("error", 2, 1)
			}),
			fires: []firing{{"ControllerErrorBudgetBurnSlow", 220, 400, orders}},
		},
	}
}

// TestWorlds: in each situation the right alerts fire, and no others. The worlds without alerts
// are jobs of one test, which takes less time.
func TestWorlds(t *testing.T) {
	if testing.Short() {
		t.Skip("Prometheus takes 20s for these")
	}
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "rules.yaml")
	write(t, file, rules(false))
	all := worlds()
	tests := map[int]*strings.Builder{1: {}, 10: {}} // by the minutes of a step
	quiet := map[int][]world{}
	for _, w := range all {
		w.minutes, w.steps = cmp.Or(w.minutes, 1), cmp.Or(w.steps, 150)
		if len(w.fires) == 0 {
			quiet[w.minutes] = append(quiet[w.minutes], w)
		} else {
			writeWorlds(tests[w.minutes], w)
		}
	}
	for minutes, b := range tests {
		t.Run(fmt.Sprintf("%dm", minutes), func(t *testing.T) {
			writeWorlds(b, quiet[minutes]...)
			path := filepath.Join(dir, fmt.Sprintf("%d.yaml", minutes))
			write(t, path, fmt.Appendf(nil, "rule_files: [%q]\nevaluation_interval: %dm\ngroup_eval_order: [controllerkit.recordings, controllerkit.alerts]\ntests:\n%s", file, minutes, b))
			promtool(t, "", "test", "rules", path)
		})
	}
	for _, a := range alerts() {
		if fired := slices.ContainsFunc(all, func(w world) bool {
			return slices.ContainsFunc(w.fires, func(f firing) bool { return f.alert == a.name })
		}); !fired && len(a.fires) == 0 {
			t.Errorf("no test has %s fire", a.name)
		}
	}
}

// writeWorlds writes a test of promtool that checks all alerts every few steps. The worlds have
// steps of equal length. If there are several, no alert fires in them.
func writeWorlds(b *strings.Builder, all ...world) {
	first := all[0]
	fmt.Fprintf(b, "  - name: %q\n    interval: %dm\n    input_series:\n", first.name, first.minutes)
	steps := 0
	for _, w := range all {
		steps = max(steps, w.steps)
		series := w.series()
		for _, name := range slices.Sorted(maps.Keys(series)) {
			fmt.Fprintf(b, "      - series: %q\n        values: %q\n", name, values(series[name], w.down))
		}
	}
	b.WriteString("    alert_rule_test:\n")
	for _, a := range alerts() {
		for n := 5; n <= steps; n += 7 {
			fired := map[string]string(nil)
			skip := false
			for _, f := range first.fires {
				switch {
				case f.alert != a.name:
				case n >= f.first && n <= f.last:
					fired = f.labels
				default:
					skip = n >= f.first-slack && n <= f.last+slack
				}
			}
			if !skip {
				writeCase(b, a, fmt.Sprintf("%dm", n*first.minutes), fired)
			}
		}
	}
}

// values returns values in the form of promtool, without repetitions. The first missing value
// ends the series, unless Prometheus is down.
func values(all []float64, down bool) string {
	var b strings.Builder
	for i := 0; i < len(all); {
		n := 1
		for i+n < len(all) && (all[i+n] == all[i] || math.IsNaN(all[i+n]) && math.IsNaN(all[i])) {
			n++
		}
		switch {
		case !math.IsNaN(all[i]):
			fmt.Fprintf(&b, "%gx%d ", all[i], n-1)
		case down || i == 0:
			fmt.Fprintf(&b, "_x%d ", n)
		default:
			b.WriteString("stale " + strings.Repeat("_ ", n-1))
		}
		i += n
	}
	return strings.TrimSpace(b.String())
}
