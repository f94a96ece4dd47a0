package metrics_test

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/metrics"
)

// TestNil: each method can be called on a nil *Metrics.
func TestNil(t *testing.T) {
	var none *metrics.Metrics
	v := reflect.ValueOf(none)
	for i := range v.NumMethod() {
		method := v.Method(i)
		var args []reflect.Value
		for arg := range method.Type().Ins() {
			args = append(args, reflect.Zero(arg))
		}
		for _, result := range method.Call(args) {
			switch r := result.Interface().(type) { // the metrics of a queue
			case interface{ Inc() }:
				r.Inc()
			case interface{ Set(float64) }:
				r.Set(1)
			case interface{ Observe(float64) }:
				r.Observe(1)
			}
		}
	}
}

func TestKeysAndWrites(t *testing.T) {
	m, reg := newMetrics(t)
	m.ReconcileWorkers("widgets", 1)
	want := func(waiting, parked, sent, skipped, status int) {
		t.Helper()
		err := testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf(`# HELP controller_keys Number of keys that wait for the gate (waiting), or that MaxAttempts has parked (parked).
# TYPE controller_keys gauge
controller_keys{controller="widgets",state="parked"} %d
controller_keys{controller="widgets",state="waiting"} %d
# HELP controller_writes_total Total number of applies and writes of a status by reconciles, sent or skipped because they would change nothing.
# TYPE controller_writes_total counter
controller_writes_total{controller="widgets",kind="apply",result="sent"} %d
controller_writes_total{controller="widgets",kind="apply",result="skipped"} %d
controller_writes_total{controller="widgets",kind="status",result="sent"} %d
controller_writes_total{controller="widgets",kind="status",result="skipped"} 0
`, parked, waiting, sent, skipped, status)), "controller_keys", "controller_writes_total")
		if err != nil {
			t.Error(err)
		}
	}
	want(0, 0, 0, 0, 0) // all are there before the first event
	m.ReconcileKeys("widgets", 3, 2)
	m.ReconcileWrote("widgets", "apply", true)
	m.ReconcileWrote("widgets", "apply", false)
	m.ReconcileWrote("widgets", "apply", false)
	m.ReconcileWrote("widgets", "status", true)
	m.ReconcileWrote("widgets", "no such kind", true)
	want(3, 2, 1, 2, 1)
	m.ReconcileKeys("widgets", 0, 0)
	want(0, 0, 1, 2, 1)
}

func TestProcess(t *testing.T) {
	m, reg := newMetrics(t)
	m.EventsRecorded("written", 1)
	m.EventsRecorded("full", 3)
	m.EventsRecorded("no such outcome", 2)
	m.EventsRecorded("full", -1)
	m.PartStopped("informers", 1500*time.Millisecond, false)
	m.PartStopped("controller", 20*time.Second, true)
	m.LeaderStatus("ns/widgets", false)
	m.LeaderAbsent("ns/widgets", 3*time.Second)
	m.LeaderAbsent("ns/widgets", -time.Second)
	m.LeaderTransition("ns/widgets", 2*time.Second)
	m.ShardsOwned("ns/widgets", 5, 5)
	m.ShardsOwned("ns/widgets", 3, 0)
	m.ShardsOwned("ns/widgets", 4, 1)
	m.ShardsOwnerless("ns/widgets", 2, 0)
	m.ShardsOwnerless("ns/widgets", 1, 1500*time.Millisecond)
	m.ShardsOwnerless("ns/widgets", 1, -time.Second)
	m.ShardsSurplus("ns/widgets", 4)
	m.ShardsSurplus("ns/widgets", 3)
	err := testutil.GatherAndCompare(reg, strings.NewReader(`# HELP controller_events_total Total number of recorded Events by outcome: written, deduplicated, or the reason for which they were dropped.
# TYPE controller_events_total counter
controller_events_total{outcome="failed"} 2
controller_events_total{outcome="full"} 3
controller_events_total{outcome="written"} 1
# HELP controller_leader_absent_seconds_total Total time in seconds for which this process saw the Lease free, counted when a process has acquired it.
# TYPE controller_leader_absent_seconds_total counter
controller_leader_absent_seconds_total{name="ns/widgets"} 5
# HELP controller_shards_began_total Total number of times that this process has become the owner of a shard.
# TYPE controller_shards_began_total counter
controller_shards_began_total{name="ns/widgets"} 6
# HELP controller_shards_owned Number of shards that this process owns.
# TYPE controller_shards_owned gauge
controller_shards_owned{name="ns/widgets"} 4
# HELP controller_shards_ownerless Number of shards for which this process sees no owner: all if it cannot use the API server.
# TYPE controller_shards_ownerless gauge
controller_shards_ownerless{name="ns/widgets"} 1
# HELP controller_shards_ownerless_seconds_total Total time in seconds for which this process saw a shard without an owner while it could use the API server, all shards together.
# TYPE controller_shards_ownerless_seconds_total counter
controller_shards_ownerless_seconds_total{name="ns/widgets"} 1.5
# HELP controller_shards_surplus Number of shards that must move because their replicas own more than their share, as this process sees them.
# TYPE controller_shards_surplus gauge
controller_shards_surplus{name="ns/widgets"} 3
# HELP controller_shutdown_duration_seconds Time in seconds from the end of a part's context until the part returned or its time was over.
# TYPE controller_shutdown_duration_seconds gauge
controller_shutdown_duration_seconds{part="controller",result="late"} 20
controller_shutdown_duration_seconds{part="informers",result="stopped"} 1.5
`), "controller_events_total", "controller_leader_absent_seconds_total", "controller_shutdown_duration_seconds",
		"controller_shards_began_total", "controller_shards_owned", "controller_shards_ownerless", "controller_shards_ownerless_seconds_total", "controller_shards_surplus")
	if err != nil {
		t.Error(err)
	}
}

// TestFailingKeys: controller_failing_keys has a series for each result that is no success, and
// controller_objects the objects of a controller while it runs.
func TestFailingKeys(t *testing.T) {
	m, reg := newMetrics(t)
	want := func(rejected, terminal, objects int) {
		t.Helper()
		var b strings.Builder
		b.WriteString("# HELP controller_failing_keys Number of keys whose last call ended with the result, also of keys that run again only at an event.\n# TYPE controller_failing_keys gauge\n")
		for _, result := range []string{"conflict", "error", "forbidden", "not_found", "panic", "rejected", "server_delay", "stale", "terminal", "timeout"} {
			fmt.Fprintf(&b, "controller_failing_keys{controller=\"c\",result=%q} %d\n", result, map[string]int{"rejected": rejected, "terminal": terminal}[result])
		}
		if objects >= 0 {
			fmt.Fprintf(&b, "# HELP controller_objects Number of objects that the controller reconciles, 0 if it is not running.\n# TYPE controller_objects gauge\ncontroller_objects{controller=\"c\"} %d\n", objects)
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(b.String()), "controller_failing_keys", "controller_objects"); err != nil {
			t.Error(err)
		}
	}
	m.ReconcileWorkers("c", 4)
	want(0, 0, -1) // present before the first failure, but the number of objects is unknown
	m.ReconcileObjects("c", func() int64 { return 7 })
	m.ReconcileObjects("c", nil)
	m.ReconcileFailing("c", "rejected", 2)
	m.ReconcileFailing("c", "terminal", 1)
	m.ReconcileFailing("c", "success", 1)
	m.ReconcileFailing("c", "no such result", 1)
	want(2, 1, 7)
	m.ReconcileFailing("c", "rejected", 0)
	m.ReconcileWorkers("c", 0)
	want(0, 1, 0)
}

// TestShardsOwnerlessUnknown: a process that is not in the group any more has no number of
// ownerless shards, which an alert could take for that of the group.
func TestShardsOwnerlessUnknown(t *testing.T) {
	m, reg := newMetrics(t)
	m.ShardsOwnerless("ns/widgets", 0, 0)
	m.ShardsOwnerless("ns/widgets", -1, time.Second)
	if n, err := testutil.GatherAndCount(reg, "controller_shards_ownerless"); n != 0 || err != nil {
		t.Errorf("%d series, %v, want none", n, err)
	}
}

// TestObjects: the gauges have the objects that are blocked at the time of a scrape.
func TestObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		want := func(drain, drainAge, buckets, bucketsAge int) {
			t.Helper()
			err := testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf(`# HELP controller_finalizer_blocked_objects Number of objects in deletion that the step blocks now.
# TYPE controller_finalizer_blocked_objects gauge
controller_finalizer_blocked_objects{finalizer="f",step="buckets"} %d
controller_finalizer_blocked_objects{finalizer="f",step="drain"} %d
# HELP controller_finalizer_blocked_oldest_seconds Time in seconds since the earliest deletion request of the objects that the step blocks now, 0 if there are none.
# TYPE controller_finalizer_blocked_oldest_seconds gauge
controller_finalizer_blocked_oldest_seconds{finalizer="f",step="buckets"} %d
controller_finalizer_blocked_oldest_seconds{finalizer="f",step="drain"} %d
`, buckets, drain, bucketsAge, drainAge)), "controller_finalizer_blocked_objects", "controller_finalizer_blocked_oldest_seconds")
			if err != nil {
				t.Error(err)
			}
		}
		m.FinalizerObject("f", "a", []string{"drain"}, time.Minute, time.Minute)
		m.FinalizerObject("f", "b", []string{"drain", "buckets"}, time.Second, time.Minute)
		want(2, 60, 1, 1)
		time.Sleep(time.Minute)
		want(2, 120, 1, 61)
		m.FinalizerObject("f", "b", []string{"buckets"}, 61*time.Second, time.Hour)
		want(1, 120, 1, 61)
		m.FinalizerObject("f", "a", nil, 2*time.Minute, 0)
		want(0, 0, 1, 61)
		m.FinalizerObject("f", "unknown", nil, 0, 0)
		time.Sleep(2*time.Hour + 10*time.Minute) // its finalizer was removed by hand: no pass comes
		want(0, 0, 1, 61+2*3600+600)
		time.Sleep(time.Second)
		want(0, 0, 0, 0)
	})
}

// TestObjectsWithoutAPass: after a terminal error no pass comes, and ControllerFinalizerStuck sees
// the object for more than an hour and a quarter. A replica that runs no controller any more
// forgets it, because a new leader may finish the cleanup.
func TestObjectsWithoutAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		want := func(when string, seconds int) {
			t.Helper()
			if err := testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf(`# HELP controller_finalizer_blocked_oldest_seconds Time in seconds since the earliest deletion request of the objects that the step blocks now, 0 if there are none.
# TYPE controller_finalizer_blocked_oldest_seconds gauge
controller_finalizer_blocked_oldest_seconds{finalizer="f",step="cleanup"} %d
`, seconds)), "controller_finalizer_blocked_oldest_seconds"); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		m.ReconcileWorkers("sites", 2)
		m.ReconcileWorkers("shops", 2)
		m.FinalizerObject("f", "a", []string{"cleanup"}, 0, 15*time.Minute)
		time.Sleep(2 * time.Hour)
		want("after two hours", 7200)
		time.Sleep(time.Second)
		want("later", 0)
		m.FinalizerObject("f", "a", []string{"cleanup"}, time.Minute, time.Second)
		m.ReconcileWorkers("shops", 0)
		want("while a controller runs", 60)
		m.ReconcileWorkers("sites", 0)
		want("after the end of all controllers", 0)
	})
}

// TestObjectsOfShards: if the Run of one shard ends because the shard has moved, its replica reports the shard's objects
// as long as passes could be late, and those of the other shards with their passes.
func TestObjectsOfShards(t *testing.T) {
	for _, names := range [][2]string{{"sites-1", "sites-2"}, {"sites", "sites"}} {
		t.Run(names[1], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, reg := newMetrics(t)
				want := func(when string, blocked, objects, workers int) {
					t.Helper()
					var got []float64
					families, err := reg.Gather()
					if err != nil {
						t.Fatal(err)
					}
					for _, f := range families { // by name
						switch f.GetName() {
						case "controller_finalizer_blocked_objects", "controller_objects", "controller_workers":
							all := f.GetMetric()
							got = append(got, all[len(all)-1].GetGauge().GetValue()) // of the last controller
						}
					}
					if want := []float64{float64(blocked), float64(objects), float64(workers)}; !slices.Equal(got, want) {
						t.Errorf("%q, %s: %v, want %v", names, when, got, want)
					}
				}
				m.ReconcileWorkers(names[0], 2)
				m.ReconcileWorkers(names[1], 2)
				m.ReconcileObjects(names[1], func() int64 { return 7 })
				m.FinalizerObject("f", "moved", []string{"cleanup"}, 0, time.Minute)
				m.FinalizerObject("f", "stays", []string{"cleanup"}, 0, time.Minute)
				m.ReconcileWorkers(names[0], 0)
				want("after the end of a Run", 2, 7, 2)
				time.Sleep(12 * time.Minute)
				m.FinalizerObject("f", "stays", []string{"cleanup"}, 12*time.Minute, time.Minute)
				want("when a pass could be late", 2, 7, 2)
				time.Sleep(time.Second)
				want("later", 1, 7, 2)
				time.Sleep(time.Hour)
				want("without a pass", 1, 7, 2)
				m.ReconcileWorkers(names[1], 0)
				want("after the end of the last Run", 0, 0, 0)
				m.ReconcileWorkers(names[1], 3)
				want("in the next Run", 0, 7, 3)
			})
		})
	}
}

// TestObjectsOfATerm: the end of another shard's Run leaves an object whose cleanup has failed for good, as
// ControllerFinalizerStuck needs it for an hour and a quarter. The end of its own shard's term does not.
func TestObjectsOfATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		want := func(when string, seconds float64) {
			t.Helper()
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() == "controller_finalizer_blocked_oldest_seconds" {
					if got := f.GetMetric()[0].GetGauge().GetValue(); got != seconds {
						t.Errorf("%s: blocked for %vs, want %vs", when, got, seconds)
					}
				}
			}
		}
		m.ReconcileWorkers("sites", 2)
		m.ReconcileWorkers("sites", 2)
		term := make(chan struct{})
		m.FinalizerTerm("f", "unknown", term)
		m.FinalizerObject("f", "a", []string{"cleanup"}, 0, 15*time.Minute)
		m.FinalizerTerm("f", "a", term)
		m.ReconcileWorkers("sites", 0) // of another shard
		time.Sleep(75 * time.Minute)
		want("after the end of another shard's Run", 4500)
		m.FinalizerObject("f", "a", []string{"cleanup"}, 75*time.Minute, 15*time.Minute)
		m.FinalizerTerm("f", "a", term)
		close(term)
		time.Sleep(40 * time.Minute)
		want("when a pass could be late", 6900)
		time.Sleep(time.Second)
		want("after the end of its own term", 0)
	})
}

// TestObjectsAreBounded proves M1: a million objects, of which each could have series.
func TestObjectsAreBounded(t *testing.T) {
	m, reg := newMetrics(t)
	steps := []string{"drain"}
	for i := range 1_000_000 {
		m.FinalizerObject("f", types.UID(strconv.Itoa(i)), steps, time.Second, time.Second)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`# HELP controller_finalizer_blocked_objects Number of objects in deletion that the step blocks now.
# TYPE controller_finalizer_blocked_objects gauge
controller_finalizer_blocked_objects{finalizer="f",step="drain"} 10000
`), "controller_finalizer_blocked_objects"); err != nil {
		t.Error(err)
	}
	if got := series(t, reg); got != 2 {
		t.Errorf("%d series, want 2", got)
	}
}

func TestMigrationProgress(t *testing.T) {
	m, reg := newMetrics(t)
	m.MigrationProgress("websites.example.com", 5, 2, false)
	m.MigrationProgress("sites.example.com", 7, 0, true)
	m.MigrationProgress("bad.example.com", -1, -1, false)
	var none *metrics.Metrics
	none.MigrationProgress("websites.example.com", 1, 1, true)
	m.MigrationProgress("former.example.com", 1, 0, true)
	m.MigrationEnded("former.example.com")
	none.MigrationEnded("former.example.com")
	const want = `
# HELP controller_migration_complete 1 if the objects of the CustomResourceDefinition are stored in its storage version, otherwise 0.
# TYPE controller_migration_complete gauge
controller_migration_complete{definition="bad.example.com"} 0
controller_migration_complete{definition="sites.example.com"} 1
controller_migration_complete{definition="websites.example.com"} 0
# HELP controller_migration_objects Number of stored objects that the last pass of a migration has read and migrated (migrated), or could not migrate (failed).
# TYPE controller_migration_objects gauge
controller_migration_objects{definition="bad.example.com",state="failed"} 0
controller_migration_objects{definition="bad.example.com",state="migrated"} 0
controller_migration_objects{definition="sites.example.com",state="failed"} 0
controller_migration_objects{definition="sites.example.com",state="migrated"} 7
controller_migration_objects{definition="websites.example.com",state="failed"} 2
controller_migration_objects{definition="websites.example.com",state="migrated"} 3
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "controller_migration_complete", "controller_migration_objects"); err != nil {
		t.Error(err)
	}
}
