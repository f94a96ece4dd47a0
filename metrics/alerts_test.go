package metrics_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/controllerkit/controllerkit/queue"
)

var update = flag.Bool("update", false, "write alerts.yaml, dashboard.json and docs/runbooks.md")

const runbooks = "https://github.com/controllerkit/controllerkit/blob/main/docs/runbooks.md"

// The two objectives.
const (
	objective = 0.99
	latency   = "60" // seconds, a bound of the buckets
	failures  = "error|timeout|panic|forbidden|not_found"
	rejected  = "rejected|terminal" // by the authors of the objects, if there are few

	// Such a call waits for others, and the next one succeeds. Many keys at once, for minutes, are a fault: an
	// admission webhook that responds with 409 to each write, for example.
	waits = "conflict|stale|server_delay"
)

// An alert is the source of a rule, of its section in docs/runbooks.md and of its tests.
type alert struct {
	name     string
	expr     string
	wait     string // the field for of the rule
	severity string // page or ticket
	summary  string // with $labels
	runbook  runbook

	fires []sample
	quiet []sample
	step  string            // between two samples of the tests; "" means 1m
	at    string            // the time of both tests
	want  map[string]string // the labels of the alert that fires, without severity
}

// A runbook has the parts of a section, in Markdown.
type runbook struct{ means, look, do, last, not string } // last can be empty

// sample is a series of a test of promtool, and its values.
type sample struct{ name, values string }

// A recording is a rule that a burn rate needs.
type recording struct{ name, expr string }

// windows are those of the burn rates. A page needs 14.4 times the budget in 1h and 5m, or 6
// times in 6h and 30m. A ticket needs 3 times in 1d and 2h, or once in 3d and 6h.
func windows() []string { return []string{"5m", "30m", "1h", "2h", "6h", "1d", "3d"} }

func long() []string { return []string{"1h", "6h", "1d", "3d"} }

func recordings() []recording {
	const failed = `controller_reconcile_total{result=~"` + failures + `"}`
	const all = `controller_reconcile_total{result!~"` + rejected + `"}`
	const intime = "controller_reconcile_latency_seconds_bucket{le=~\"" + latency + "(\\\\.0)?\"}" // Prometheus 3 stores le="60.0"
	const settled = "controller_reconcile_latency_seconds_count"
	of := func(function, series, window string) string {
		return fmt.Sprintf("sum by (job, controller) (%s(%s[%s]))", function, series, window)
	}
	var rules []recording
	for _, w := range windows() {
		rules = append(rules, recording{"controller:reconcile_errors:ratio_rate" + w, of("rate", failed, w) + "\n/\n" + of("rate", all, w)})
	}
	for _, w := range long() {
		rules = append(rules, recording{"controller:reconcile_errors:increase" + w, of("increase", failed, w)})
	}
	for _, w := range windows() {
		rules = append(rules, recording{"controller:reconcile_late:ratio_rate" + w, "1 - " + of("rate", intime, w) + "\n/\n" + of("rate", settled, w)})
	}
	for _, w := range long() {
		rules = append(rules, recording{"controller:reconcile_late:increase" + w, of("increase", settled, w) + "\n-\n" + of("increase", intime, w)})
	}
	return append(rules, recording{"controller:failing_keys:sum", `sum by (job, controller) (controller_failing_keys{result=~"` + failures + "|" + rejected + "|" + waits + `"})`})
}

// least are the numbers of failed and of late calls in each long window that an alert needs: with
// fewer, a share says little. A key that fails all the time has about 32 failed calls in its first hour
// and 16 in each later one, with the rate limiter of package queue. A page needs three of them,
// and a ticket one for some hours: see TestLeast. A late key has one late call.
func least(ratio, window string) int {
	if ratio == ofLate {
		return 10
	}
	return map[string]int{"1h": 80, "6h": 240, "1d": 100, "3d": 100}[window]
}

// The names of recordings without the end.
const ofErrors, ofLate = "controller:reconcile_errors:", "controller:reconcile_late:"

// burn returns the expression of two pairs of windows of a ratio.
func burn(ratio string, rates [2]string, pairs [2][2]string) string {
	var or []string
	for i, p := range pairs {
		limit := fmt.Sprintf("(%s * %.2f)", rates[i], 1-objective)
		or = append(or, fmt.Sprintf("(%[1]sratio_rate%[2]s > %[4]s and %[1]sratio_rate%[3]s > %[4]s and %[1]sincrease%[2]s >= %[5]d)", ratio, p[0], p[1], limit, least(ratio, p[0])))
	}
	return strings.Join(or, "\nor\n")
}

func fast(ratio string) string {
	return burn(ratio, [2]string{"14.4", "6"}, [2][2]string{{"1h", "5m"}, {"6h", "30m"}})
}

// stillFails is true while a key fails for a reason that a later call can cure. Each key of a fault that is over
// has used up much of the budget: 15 calls in its first minute.
const stillFails = "sum by (job, controller) (controller_failing_keys{result=~\"" + failures + "\"}) > 0"

func slow(ratio string) string {
	return burn(ratio, [2]string{"3", "1"}, [2][2]string{{"1d", "2h"}, {"3d", "6h"}})
}

func alerts() []alert {
	total := func(result, values string) sample {
		return sample{`controller_reconcile_total{job="shop",controller="orders",result="` + result + `"}`, values}
	}
	settled := func(in, all string) []sample {
		const name, labels = "controller_reconcile_latency_seconds_", `{job="shop",controller="orders"`
		return []sample{{name + "bucket" + labels + `,le="60"}`, in}, {name + "bucket" + labels + `,le="+Inf"}`, all}, {name + "count" + labels + "}", all}}
	}
	orders := map[string]string{"job": "shop", "controller": "orders"}
	lease := map[string]string{"job": "shop", "name": "shop/orders"}
	leads := func(instance, values string) sample {
		return sample{`leader_election_master_status{job="shop",instance="` + instance + `",name="shop/orders"}`, values}
	}
	sees := func(instance, values string) sample {
		return sample{`controller_leader_seen{job="shop",instance="` + instance + `",name="shop/orders"}`, values}
	}
	failing := func(result, values string) sample {
		return sample{`controller_failing_keys{job="shop",instance="a",controller="orders",result="` + result + `"}`, values}
	}
	objects := func(values string) sample {
		return sample{`controller_objects{job="shop",instance="a",controller="orders"}`, values}
	}
	terms := func(values string) sample {
		return sample{`controller_leader_transitions_total{job="shop",instance="a",name="shop/orders"}`, values}
	}
	gauge := func(name, labels, values string) []sample {
		return []sample{{name + `{job="shop",instance="a",` + labels + "}", values}}
	}
	unready := func(values string) sample {
		return gauge("controller_not_ready_oldest_seconds", `resource="websites.example.com"`, values)[0]
	}
	websites := map[string]string{"job": "shop", "resource": "websites.example.com"}
	const lookErrors = "The panel *Reconciles by result* names the result. The line `Reconcile failed` of the log has the key, the class and the error. [logging.md](logging.md) has the fields. The page of [debug.md](debug.md) lists the keys under *Last calls without success*."
	const lookLate = "Compare the panels *Event to success*, *Duration*, *Depth* and *Keys that wait*. A high depth means too few workers or slow calls. Keys that wait need their caches. The page of [debug.md](debug.md) shows for one key what it waits for."
	return []alert{
		{
			name: "ControllerErrorBudgetBurnFast", expr: "(\n  " + strings.ReplaceAll(fast(ofErrors), "\n", "\n  ") + "\n)\nand\n" + stillFails, wait: "2m", severity: "page",
			summary: "Controller {{ $labels.controller }} of {{ $labels.job }} fails so often that its error budget of a month ends within days.",
			runbook: runbook{
				means: "1 % of the reconciles of 30 days may fail: their error budget. More than 14.4 % of the last hour failed, which uses up the budget in two days, or more than 6 % of the last six hours. The results " + "`" + strings.ReplaceAll(failures, "|", "`, `") + "` count. A conflict or a stale read does not, nor do `rejected` and `terminal`: see ControllerObjectsFailing. An hour with fewer than 80 failed calls, which two keys do not have, does not page, nor does a fault that is over: at least one key fails now.",
				look:  lookErrors,
				do:    "`forbidden`: compare the role with the requests that the log names; if the response is `Unauthorized`, repair the credentials and not the role. A response without `cannot VERB resource` is not about a verb of the role, and its text names the cause. A key runs again within 15 minutes after the repair, and at once if its object changes. `timeout`: look at the latency of the API server, of webhooks for the written kinds, and of other services. `panic`: the log has the stack; roll back.",
				not:   "Do not restart the process: the keys fail again, and a restart lists everything. Do not delete the failing object: its finalizer needs the same controller.",
			},
			fires: []sample{total("success", "0+10x120"), total("error", "0+10x120"), failing("error", "1x120")},
			quiet: []sample{total("success", "0+10x120"), total("error", "0+10x120"), failing("error", "1x117 0x3"), failing("terminal", "1x120")},
			at:    "120m", want: orders,
		},
		{
			name: "ControllerErrorBudgetBurnSlow", expr: slow(ofErrors), wait: "15m", severity: "ticket",
			summary: "Controller {{ $labels.controller }} of {{ $labels.job }} fails more often than its objective allows.",
			runbook: runbook{
				means: "More than 3 % of the reconciles of a day failed, or more than 1 % in three days. That uses up the error budget before its 30 days are over. Usually a few keys fail all the time.",
				look:  lookErrors + " Count the lines by key to find the few.",
				do:    "Correct those objects. If only their authors can, return an error that wraps `reconcile.ErrTerminal`, which does not count here, and write a condition with the reason.",
				not:   "Do not raise the objective's bound before you know which keys fail.",
			},
			fires: []sample{total("success", "0+96x150"), total("error", "0+4x150")},
			quiet: []sample{total("success", "0+996x150"), total("error", "0+4x150")},
			step:  "10m", at: "1500m", want: orders,
		},
		{
			name: "ControllerLatencyBudgetBurnFast", expr: fast(ofLate), wait: "2m", severity: "page",
			summary: "Controller {{ $labels.controller }} of {{ $labels.job }} takes longer than " + latency + "s from an event to its success, too often for its objective.",
			runbook: runbook{
				means: "99 % of the calls that settle events should end within " + latency + "s of the first of these events. The time includes the queue, the wait for caches, and retries. Events of a key that never succeeds are not in it: see ControllerErrorBudgetBurnFast. The objects of the first list after a start are not in it either, because nobody knows when they changed.",
				look:  lookLate,
				do:    "Add workers if the workers are all active and the API server is not slow. Give calls to other services a timeout. Split one hot object into several.",
				not:   "Do not add replicas: one of them leads, and the others wait. Do not lower the resync interval.",
			},
			fires: settled("0+5x120", "0+10x120"), quiet: settled("0+999x120", "0+1000x120"), at: "120m", want: orders,
		},
		{
			name: "ControllerLatencyBudgetBurnSlow", expr: slow(ofLate), wait: "15m", severity: "ticket",
			summary: "Controller {{ $labels.controller }} of {{ $labels.job }} is later than its objective allows.",
			runbook: runbook{
				means: "More than 3 % of the calls of a day that settled events, or more than 1 % in three days, ended later than " + latency + "s after the first of these events.",
				look:  lookLate + " Look at the same hour of earlier days: a job that changes many objects at once fills the queue.",
				do:    "Give keys of such jobs a lower priority in the queue, or a group of their own.",
				not:   "Do not change the bound to hide a job that comes each day.",
			},
			fires: settled("0+96x150", "0+100x150"), quiet: settled("0+997x150", "0+1000x150"), step: "10m", at: "1500m", want: orders,
		},
		{
			name: "ControllerObjectsFailing", wait: "10m", severity: "page",
			// The last part is a release that breaks some objects: there are more than twice as many
			// failing keys as on the day before the start of a loop within the last hour.
			expr: `(
  controller:failing_keys:sum > 0.1 * sum by (job, controller) (controller_objects)
  and
  (controller:failing_keys:sum > 2 or controller:failing_keys:sum >= sum by (job, controller) (controller_objects))
)
or
(
  controller:failing_keys:sum > 2 + 2 * max_over_time(controller:failing_keys:sum[1d] offset 1h)
  and
  count by (job, controller) (controller_workers > 0 unless controller_workers offset 1h > 0)
  unless
  controller:failing_keys:sum < 0.01 * sum by (job, controller) (controller_objects)
)`,
			summary: "Controller {{ $labels.controller }} of {{ $labels.job }} fails for more than a tenth of its objects, or for many more than before its last start.",
			runbook: runbook{
				means: "The last call failed for more than a tenth of the objects, and for three objects at least or for all. Or a replica started within the last hour, and more than twice as many objects fail as at any time of the day before, plus two, and 1 % of all. The results `" + strings.ReplaceAll(failures+"|"+rejected+"|"+waits, "|", "`, `") + "` count. One or two objects that their authors wrote wrong do not cause this alert, unless they are all objects.",
				look:  "The panel *Failing keys* names the result, and when it began. " + lookErrors + " Compare the time with the last release and with changes of CustomResourceDefinitions, webhooks and policies.",
				do:    "If it began with a release, roll back. `rejected`: the log has the response of the API server; correct the object that the controller sends, or the quota, webhook or policy that rejects it. `terminal`: a condition of the object has the reason. `conflict` of many keys: an admission webhook or an aggregated API server responds with 409, or another program writes these objects all the time. `stale`: see ControllerWatchStalled. For other results see ControllerErrorBudgetBurnFast.",
				not:   "Do not delete the failing objects: their finalizers need the same controller.",
			},
			fires: []sample{failing("rejected", "0x10 30x50"), objects("200x60")},
			quiet: []sample{failing("rejected", "0x10 15x50"), failing("error", "0x20 20x5 0x35"), objects("200x60")},
			at:    "60m", want: orders,
		},
		{
			name: "ControllerObjectsNotReady", wait: "15m", severity: "ticket",
			// All replicas count the objects of their informers. With shards, each replica has a part of them.
			expr:    "max by (job, resource) (controller_not_ready_oldest_seconds) > 3600",
			summary: "An object of {{ $labels.resource }} has not been ready for more than an hour, as {{ $labels.job }} sees it.",
			runbook: runbook{
				means: "The condition Ready of an object has not been True for an hour, or is about an older generation, or its deletion takes as long. Objects that an annotation pauses do not count. The calls of the controller can succeed all the time: it waits for something, such as a child that does not become ready.",
				look:  "The panel *Objects by condition* has the reasons, and *Objects that are not ready* their number. `kubectl get KIND -A -o json | jq -r '.items[] | .metadata.generation as $g | select(.metadata.deletionTimestamp or (any(.status.conditions[]?; .type == \"Ready\" and .status == \"True\" and (.observedGeneration // $g) >= $g) | not)) | .metadata.namespace + \"/\" + .metadata.name'` lists the objects, and those that are paused. The message of the condition names the child or the error. After the first installation, objects older than an hour have had no call yet: the alert ends with the first pass, and `workqueue_depth` falls.",
				do:    "One object: its author reads the condition, and corrects the object. Many objects with one reason: look for the cause that they share, such as a quota, a node or a service, and for a release at the time when the number began to grow. An object whose Ready is about an older generation has not been reconciled: its key on the page of [debug.md](debug.md) shows why. A deleted object whose finalizer no running version knows waits for ever: run the version that does ([upgrades.md](upgrades.md)).",
				not:   "Do not pause the objects to end the alert, unless somebody repairs them by hand.",
			},
			fires: []sample{unready("0+60x90")},
			quiet: []sample{unready("0+60x70 0x20")},
			at:    "90m", want: websites,
		},
		{
			name: "ControllerObjectsPaused", wait: "0m", severity: "ticket",
			// A replica that has just started has counted no objects yet, so a few samples can be 0. Without the
			// second part, the history of a new Prometheus would be a day.
			expr:    "quantile_over_time(0.05, max by (job, resource) (controller_paused_objects)[1d:5m]) > 0\nand\nmax by (job, resource) (controller_paused_objects offset 1d) > 0",
			summary: "Objects of {{ $labels.resource }} have been paused for a day, as {{ $labels.job }} sees it.",
			runbook: runbook{
				means: "For a day an annotation has paused at least one object, not always the same one. The controller does nothing for a paused object: a new spec has no effect, and its children are not repaired.",
				look:  "The page of [debug.md](debug.md) lists the *Paused objects*. So does `kubectl get KIND -A -o json | jq -r '.items[] | select(any(.status.conditions[]?; .type == \"Paused\" and .status == \"True\")) | .metadata.namespace + \"/\" + .metadata.name'`. The message of the condition has the value of the annotation, which can be the reason. A kind with `ReadOnly` has no condition: look for the annotation.",
				do:    "Ask the user who has set the annotation: the managedFields of the object have the program and the time. Then remove it: `kubectl -n NAMESPACE annotate KIND/NAME controllerkit.github.io/paused-`, with your prefix if `Options.AnnotationPrefix` is set.",
				not:   "Do not remove the annotations of all objects at once: a repair by hand may go on, and the controller would undo it.",
			},
			fires: gauge("controller_paused_objects", `resource="websites.example.com"`, "2x160"),
			quiet: gauge("controller_paused_objects", `resource="websites.example.com"`, "2x60 0x20 2x80"),
			step:  "10m", at: "1600m", want: websites,
		},
		{
			name: "ControllerNoLeader", wait: "2m", severity: "page",
			// A leader that cannot be scraped is seen by the standbys. The second part is for an elector
			// that is not of package leader.
			expr:    "max by (job, name) (controller_leader_seen) == 0\nor\n(max by (job, name) (leader_election_master_status) == 0 unless max by (job, name) (controller_leader_seen))",
			summary: "No replica of {{ $labels.job }} holds the Lease {{ $labels.name }}.",
			runbook: runbook{
				means: "Replicas run, but without a leader, so no key is reconciled. If no replica runs, there is no series and no alert: alert on `up` too.",
				look:  "`kubectl get lease -n NAMESPACE NAME -o yaml` shows the holder and its last renewal. The line `Stopped leading` of the last leader has the error of its last renewal, such as a connection that is refused. The log of the standbys has `Cannot use the Lease` if the API server rejects their requests. In a manager with `managerkit/bridge`, no part starts before each informer has its first list: /readyz names the one that has not.",
				do:    "If the holder is a Pod that is gone, the standbys take the Lease after its `leaseDurationSeconds`. If requests are forbidden, restore the role; if they are `Unauthorized`, the credentials. If the Lease has a `strategy`, delete the Lease. If the error of `Stopped leading` is a timeout, or names `too many requests`, apply [flowschema.yaml](../leader/manifests/flowschema.yaml) with your ServiceAccount.",
				not:   "Do not edit `holderIdentity` by hand while a holder may run: two replicas would work at once.",
			},
			fires: []sample{sees("a", "1x5 0x20"), sees("b", "1x6 0x19"), leads("a", "1x5 0x20"), leads("b", "0x25")},
			quiet: []sample{sees("b", "1x20"), leads("b", "0x20")}, // the leader a is not scraped
			at:    "20m", want: lease,
		},
		{
			name: "ControllerLeaderFlapping", severity: "ticket", wait: "5m",
			// The second part counts replicas that have led: a replica that is killed as leader has no
			// increase, because its first sample is 1 already.
			expr:    "sum by (job, name) (increase(controller_leader_transitions_total[1h])) > 4\nor\ncount by (job, name) (max_over_time(leader_election_master_status[1h]) == 1) > 4",
			summary: "The leader of {{ $labels.job }} changed more than four times in an hour.",
			runbook: runbook{
				means: "Each change stops all work and begins it again. The leader dies, or it cannot renew its Lease in time.",
				look:  "The panel *Renewals* shows slow ones. Look for restarts of the Pods (`kubectl get pods`), for CPU throttling, and for a slow API server.",
				do:    "Give the container more CPU or memory. If renewals are slow because of the network, use a longer `LeaseDuration` and `RenewDeadline`. If the API server is busy, apply [flowschema.yaml](../leader/manifests/flowschema.yaml) with your ServiceAccount: renewals then wait for no other requests.",
				not:   "Do not turn the election off. Do not scale to zero and back: that is one more change.",
			},
			fires: []sample{leads("a", "1x70"), terms("0x10 0+1x10 10x50")},
			quiet: []sample{leads("a", "1x30 0x40"), leads("b", "0x30 1x40"), terms("0x10 1x60")},
			at:    "60m", want: lease,
		},
		{
			name: "ControllerShardsOwnerless", severity: "page", wait: "2m",
			// A replica without the API server sees no owner at all, and another one that sees all owners
			// knows better.
			expr:    "min by (job, name) (controller_shards_ownerless) > 0",
			summary: "Shards of the group {{ $labels.name }} of {{ $labels.job }} have no owner.",
			runbook: runbook{
				means: "The objects of these shards are not reconciled. If the API server cannot be used, that is all shards. If a replica crashes, its shards have owners after `LeaseDuration` and a few seconds. If no replica runs, there is no series and no alert: alert on `up` too.",
				look:  "`kubectl get leases -n NAMESPACE -l controllerkit.github.io/shard-group=NAME` lists the replicas and the last renewal of each. The error of `Group.Status` and the line `A request of the group failed` name a request that is rejected.",
				do:    "If each replica has as many shards as `MaxShards` allows, add replicas or raise it. If requests are forbidden, restore the role of `shard/manifests/role.yaml`. If the API server is busy, apply [flowschema.yaml](../leader/manifests/flowschema.yaml) with your ServiceAccount.",
				not:   "Do not edit the table's Lease: two replicas would work on one shard.",
			},
			fires: gauge("controller_shards_ownerless", `name="shop/orders"`, "0x5 4x15"),
			quiet: gauge("controller_shards_ownerless", `name="shop/orders"`, "0x5 4 0x14"),
			at:    "20m", want: lease,
		},
		{
			name: "ControllerShardsUnbalanced", severity: "ticket", wait: "15m",
			expr:    "max by (job, name) (controller_shards_surplus) > 0",
			summary: "Shards of the group {{ $labels.name }} of {{ $labels.job }} do not move to their new owners.",
			runbook: runbook{
				means: "A shard moves after its work has returned. The work of these shards was asked to stop, and still runs: a new replica has nothing to do, or a replica that stops does not end.",
				look:  "The panel *Owned shards* shows the replica with the most. Its goroutines with the label `shard` are the work: see `/debug/pprof/goroutine?debug=1` at [`Options.Debug`](debug.md). The panel *Longest running* shows a reconcile that does not return.",
				do:    "Restart that replica: after `DrainTimeout` its shards move. Then make the work return soon after the end of its context, such as by the `Timeout` of its reconciles.",
				not:   "Do not edit the table's Lease: two replicas would work on one shard.",
			},
			fires: gauge("controller_shards_surplus", `name="shop/orders"`, "0x5 2x25"),
			quiet: gauge("controller_shards_surplus", `name="shop/orders"`, "0x5 2x10 0x15"),
			at:    "25m", want: lease,
		},
		{
			name: "ControllerFinalizerStuck", severity: "ticket", wait: "15m",
			expr:    "max by (job, finalizer, step) (controller_finalizer_blocked_oldest_seconds) > 3600",
			summary: "Step {{ $labels.step }} of finalizer {{ $labels.finalizer }} has blocked an object of {{ $labels.job }} for more than an hour.",
			runbook: runbook{
				means: "An object was deleted more than an hour ago, and its cleanup does not finish. Its namespace cannot be deleted either.",
				look:  "`kubectl get KIND -A -o json | jq '.items[] | select(.metadata.deletionTimestamp)'` lists the objects, and so does the page of [debug.md](debug.md) under *Finalizers that block*. The condition `Terminating` has the step and its reason. The step `removal` means that the cleanup is done and the API server rejects the removal of the finalizer: the line `Reconcile failed` has the reason, such as a missing right or a webhook. *Blocked objects* shows how many there are.",
				do:    "Repair what the step waits for: children that do not end, a service that does not respond, missing rights. In a namespace that is deleted Kubernetes removes RoleBindings first, and no new one can be made: bind the ClusterRole by a ClusterRoleBinding until the namespace is gone. A step with `GiveUpAfter` ends by itself.\n\nIf the operator was removed before its objects, this alert has no series. Their CustomResourceDefinition stays in the state Terminating, if it was removed too. Install the same version of the operator again until both are gone, and remove it again.",
				last:  "Remove by hand what the finalizer guards, and then this finalizer alone. Those of others stay, and `replace` fails if the object changed meanwhile:\n\n    kubectl -n NAMESPACE get KIND NAME -o json | jq '.metadata.finalizers -= [\"FINALIZER\"]' | kubectl replace -f -",
				not:   "Do not remove the finalizer first: what it guards stays behind, and no object names it. Do not patch `metadata.finalizers` to `null` or `[]`: that removes those of other controllers too. Do not remove an operator before its objects.",
			},
			fires: gauge("controller_finalizer_blocked_oldest_seconds", `finalizer="example.com/f",step="drain"`, "3000+60x60"),
			quiet: gauge("controller_finalizer_blocked_oldest_seconds", `finalizer="example.com/f",step="drain"`, "0+60x55 0x5"),
			at:    "60m", want: map[string]string{"job": "shop", "finalizer": "example.com/f", "step": "drain"},
		},
		{
			name: "ControllerQueueGrowing", severity: "ticket", wait: "30m",
			expr:    "sum by (job, name) (workqueue_depth) > 100\nand\nsum by (job, name) (deriv(workqueue_depth[30m])) * 1800 > 0.1 * sum by (job, name) (workqueue_depth)",
			summary: "The queue {{ $labels.name }} of {{ $labels.job }} has been growing for half an hour.",
			runbook: runbook{
				means: "More keys come than the workers finish: the queue has more than 100 keys, and grows by more than a tenth in half an hour.",
				look:  "*Active workers* near the number of workers means that calls are slow: see *Duration*. Few active workers and a high depth mean that a worker is wedged or the loop does not run. A high rate of *Adds* means that something changes many objects.",
				do:    "Find who writes the objects, and slow it down. Add workers. Skip writes that change nothing (`ssa.ApplyChanged`).",
				not:   "Do not restart the process: all keys come back at once, with a list of everything.",
			},
			fires: gauge("workqueue_depth", `name="orders"`, "0+10x120"),
			quiet: gauge("workqueue_depth", `name="orders"`, "0+10x60 600-10x60"),
			at:    "110m", want: map[string]string{"job": "shop", "name": "orders"},
		},
		{
			name: "ControllerWorkerWedged", severity: "page", wait: "5m",
			expr:    "max by (job, instance, name) (workqueue_longest_running_processor_seconds) > 600",
			summary: "A worker of queue {{ $labels.name }} on {{ $labels.instance }} of {{ $labels.job }} has run one key for more than ten minutes.",
			runbook: runbook{
				means: "A call does not return. Its key is not reconciled, and the worker is lost. If all workers are wedged, the liveness probe of `Controller.Check` restarts the process before this alert can fire: see ControllerRestarting.",
				look:  "The goroutines show where it waits: see `/debug/pprof/goroutine?debug=2` at [`Options.Debug`](debug.md), or send SIGQUIT, which ends the process. If the liveness probe has `Controller.Check`, its error has the key.",
				do:    "Restart the Pod after you have kept the goroutines. Then give the call a context with a deadline: set `Timeout`, and pass the context on to each request.",
				not:   "Do not only add workers: each of them is lost in the same way.",
			},
			fires: gauge("workqueue_longest_running_processor_seconds", `name="orders"`, "0+60x30"),
			quiet: gauge("workqueue_longest_running_processor_seconds", `name="orders"`, "0+60x12 0x18"),
			at:    "30m", want: map[string]string{"job": "shop", "instance": "a", "name": "orders"},
		},
		{
			name: "ControllerRestarting", severity: "page", wait: "0m",
			// A replica that never works counts if no other one does: a standby that ends does no harm.
			expr: `max by (job, instance) (changes(process_start_time_seconds[1h])) > 3
and
(
  max by (job, instance) (max_over_time(controller_workers[1h])) > 0
  or
  (
    max by (job, instance) (max_over_time(controller_workers[1h])) == 0
    unless on (job)
    max by (job) (max_over_time(controller_workers[1h])) > 0
  )
)`,
			summary: "The replica {{ $labels.instance }} of {{ $labels.job }} has begun more than three times again in an hour.",
			runbook: runbook{
				means: "The process ends again and again. It has worked within the hour, or no replica has. Either it ends itself, such as when its first lists do not end within `StartTimeout`, or the kernel kills it because of its memory, or its liveness probe fails: after five minutes in which no call returned, for example. The last hides the cause, because each new process has new metrics.",
				look:  "`kubectl describe pod` has the last state of the container: the exit code, `OOMKilled`, or an Event of the liveness probe with its message. `kubectl logs --previous` has the last lines. If no call returns, the error of the probe names the keys. If an informer cannot decode an object, it names the object. If an informer has no first list, the last line names it and the reason, such as a right that is missing.",
				do:    "If calls do not return, give them a deadline: set `Timeout`, and pass the context on to each request. If the memory is at its limit, raise it, or hold less in the caches ([memory.md](memory.md)). If an object does not decode, correct it. After a release, go back to the last one.",
				not:   "Do not remove the liveness probe: the process then stays without doing its work.",
			},
			fires: append(gauge("process_start_time_seconds", "", "0x10 600x8 1200x8 1800x8 2400x30"), gauge("controller_workers", `controller="orders"`, "0x5 4x60")...),
			quiet: append(gauge("process_start_time_seconds", "", "0x10 600x16 1200x16 1800x20"), gauge("controller_workers", `controller="orders"`, "0x5 4x60")...),
			at:    "60m", want: map[string]string{"job": "shop", "instance": "a"},
		},
		{
			name: "ControllerHotKey", severity: "ticket", wait: "10m",
			expr:    "sum by (job, controller) (rate(controller_reconcile_held_total[5m])) > 1",
			summary: "Controller {{ $labels.controller }} of {{ $labels.job }} delays a key that makes itself run.",
			runbook: runbook{
				means: "A key runs as often as the loop allows: 100 times at once, then 10 times a second. Usually the reconcile changes its own object each time, or two controllers overwrite each other.",
				look:  "The line `Slowed down a key that runs too often` has the key and its triggers, as has the page of [debug.md](debug.md) in the state *hot*. `kubectl get -w -o yaml --show-managed-fields` shows which field changes, and its manager.",
				do:    "Remove values that differ each time (times, random names, the order of a map). Write with `status.Update` and `ssa.ApplyChanged`, which skip equal writes. If another controller sets the field, [give it the field](mistakes.md#give-a-field-to-another-writer): a field that is only left out gets its default.",
				not:   "Do not add a sleep: the loop goes on, only slower.",
			},
			fires: gauge("controller_reconcile_held_total", `controller="orders"`, "0+600x30"),
			quiet: gauge("controller_reconcile_held_total", `controller="orders"`, "0+20x30"),
			at:    "30m", want: orders,
		},
		{
			name: "ControllerGateTimeouts", severity: "ticket", wait: "5m",
			expr:    `sum by (job) (increase(controller_consistency_wait_duration_seconds_count{result="timeout"}[15m])) > 3`,
			summary: "Keys of {{ $labels.job }} waited in vain for their caches.",
			runbook: runbook{
				means: "A cache did not show a write of the controller within `MaxWait`. The key then ran with an old cache.",
				look:  "The line `The caches do not show the writes of a key` has the resource and the version, as has the page of [debug.md](debug.md) in the state *gated*. Look whether the informer of that resource lags or has lost its watch.",
				do:    "Restart the Pod if one watch is dead. If the informer does not select the objects that the controller writes (a label or field selector), use an informer that selects them.",
				not:   "Do not lower `MaxWait`: more keys would run with an old cache.",
			},
			fires: gauge("controller_consistency_wait_duration_seconds_count", `result="timeout"`, "0+1x60"),
			quiet: gauge("controller_consistency_wait_duration_seconds_count", `result="timeout"`, "0x30 1x30"),
			at:    "60m", want: map[string]string{"job": "shop"},
		},
		{
			name: "ControllerWatchStalled", severity: "page", wait: "5m",
			expr:    "max by (job, instance, name) (controller_informer_last_event_age_seconds) > 600",
			summary: "The informer {{ $labels.name }} on {{ $labels.instance }} of {{ $labels.job }} has received nothing for ten minutes.",
			runbook: runbook{
				means: "The API server sends each watch a bookmark about once a minute, so ten minutes without data mean that the watch is dead or cannot begin. The cache is old, and the controller acts on it.",
				look:  "`rest_client_requests_total` shows whether the API server responds, and with which code. *Watches and lists* shows whether the informer tries again. The log has the error: of client-go's reflector, \"The API server cannot be reached by an informer\" or \"The API server refuses the requests of an informer\". With 429 and \"storage is (re)initializing\" the API server cannot list the stored objects, such as while the conversion webhook of the CustomResourceDefinition is down. For an informer of several namespaces the time is that of the oldest namespace, also of one that was selected and could not be listed yet; the error names it. Aggregated API servers may send no bookmarks. The line `The server was silent in two watches, and the informer lists again` means that the API server or a proxy accepts watches and sends nothing, as after a restore of etcd.",
				do:    "If lists or watches are forbidden, restore the role. If a conversion fails, repair its webhook. If the informer does not try at all, restart the Pod: `Set.Check` in the liveness probe does that. After `etcd was restored from a backup, and an informer lists again`, compare what exists outside of the cluster with the objects.",
				not:   "Do not delete objects that the controller seems to have forgotten: it cannot see them.",
			},
			fires: gauge("controller_informer_last_event_age_seconds", `name="pods"`, "0x5 0+60x25"),
			quiet: gauge("controller_informer_last_event_age_seconds", `name="pods"`, "0x5 0+60x8 0x16"),
			at:    "30m", want: map[string]string{"job": "shop", "instance": "a", "name": "pods"},
		},
		{
			name: "ControllerObjectMalformed", severity: "ticket", wait: "5m",
			expr:    "max by (job, name) (max_over_time(controller_informer_malformed_objects[10m])) > 0", // also if the process restarts
			summary: "The informer {{ $labels.name }} of {{ $labels.job }} cannot decode an object.",
			runbook: runbook{
				means: "The API server accepted an object that the Go type cannot hold, such as a string that is no duration. An informer of package crd goes on without the object. Another informer gets no more events at all, and the process restarts: see ControllerRestarting.",
				look:  "The log names the object, at most one a minute. If the informer is not of package crd, `Set.Ready` or `Set.Check` can name it too.",
				do:    "Correct or delete the object. Then make the schema of the CustomResourceDefinition reject such values, by a pattern or a format.",
				not:   "Do not restart the process: the first list has the object, too. If the informer is not of package crd, /livez fails, and the restarts of the kubelet do not help.",
			},
			fires: gauge("controller_informer_malformed_objects", `name="pods"`, "0x10 1 _x4 1 _x4 1 _x4 1 _x4 1 _x4 1"), // a process that restarts
			quiet: gauge("controller_informer_malformed_objects", `name="pods"`, "0x10 1x3 0x16"),
			at:    "30m", want: map[string]string{"job": "shop", "name": "pods"},
		},
		{
			name: "ControllerMigrationBlocked", severity: "ticket", wait: "0m",
			// A restart leaves a gap.
			expr:    "max by (job, definition) (max_over_time(controller_migration_complete[1d])) == 0\nand\nmax by (job, definition) (controller_migration_complete offset 1d) == 0",
			summary: "The migration of {{ $labels.definition }} by {{ $labels.job }} has not ended for a day.",
			runbook: runbook{
				means: "Some stored objects are still in an older version. While they are, that version cannot be removed from the CustomResourceDefinition, and reads of such an object need the conversion.",
				look:  "The condition `StoredVersionsMigrated` of the CustomResourceDefinition has the reason and the first names, as has the line `The stored objects are not migrated`. `controller_migration_objects` has the numbers. [crd-versions.md](crd-versions.md) has the way.",
				do:    "Correct the objects that it names, or the webhook or policy that rejects their writes. The migration tries again by itself.",
				not:   "Do not remove the old version from `status.storedVersions` by hand: objects that are still stored in it can then not be read.",
			},
			fires: gauge("controller_migration_complete", `definition="websites.example.com"`, "0x160"),
			quiet: gauge("controller_migration_complete", `definition="websites.example.com"`, "0x60 1 0x99"),
			step:  "10m", at: "1600m", want: map[string]string{"job": "shop", "definition": "websites.example.com"},
		},
		{
			name: "ControllerCacheMutated", severity: "ticket", wait: "0m",
			expr:    "sum by (job, name) (increase(controller_informer_mutations_total[1h])) > 0",
			summary: "A program of {{ $labels.job }} changes objects in its cache of {{ $labels.name }}.",
			runbook: runbook{
				means: "The program wrote to an object of the cache instead of a copy. Other parts of the program take the change for the state of the API server, and it is a data race. `Set.Mutated` samples few objects, so there are more changes than are counted.",
				look:  "The function `Set.Mutated` of the program gets the object and the field, and the page of [debug.md](debug.md) shows the last one of each informer. Search the code for writes to that field. The race detector finds them in tests.",
				do:    "Call `DeepCopy` before a change. A restart makes the cache true again until the next change.",
				not:   "Do not disable the samples.",
			},
			fires: gauge("controller_informer_mutations_total", `name="pods"`, "0x10 1x20"),
			quiet: gauge("controller_informer_mutations_total", `name="pods"`, "7x30"),
			at:    "30m", want: map[string]string{"job": "shop", "name": "pods"},
		},
	}
}

// rules returns the content of alerts.yaml, or its alerts alone.
func rules(alertsOnly bool) []byte {
	var b bytes.Buffer
	indented := func(field, text string) {
		fmt.Fprintf(&b, "        %s: |\n", field)
		for line := range strings.SplitSeq(text, "\n") {
			fmt.Fprintf(&b, "          %s\n", line)
		}
	}
	b.WriteString("# Rules for Prometheus about controllers. Generated by \"go test ./metrics -run TestAlerts -update\".\n" +
		"# docs/alerts.md explains them, docs/runbooks.md has a section for each alert.\ngroups:\n")
	if !alertsOnly {
		b.WriteString("  - name: controllerkit.recordings\n    rules:\n")
	}
	for _, r := range recordings() {
		if alertsOnly {
			break
		}
		fmt.Fprintf(&b, "      - record: %s\n", r.name)
		indented("expr", r.expr)
	}
	b.WriteString("  - name: controllerkit.alerts\n    rules:\n")
	for _, a := range alerts() {
		fmt.Fprintf(&b, "      - alert: %s\n", a.name)
		indented("expr", a.expr)
		fmt.Fprintf(&b, "        for: %s\n        labels:\n          severity: %s\n        annotations:\n          summary: %q\n          runbook_url: %s\n",
			a.wait, a.severity, a.summary, a.url())
	}
	return b.Bytes()
}

func (a alert) url() string { return runbooks + "#" + strings.ToLower(a.name) }

// page returns docs/runbooks.md.
func page() []byte {
	var b bytes.Buffer
	b.WriteString("# Runbooks\n\nOne section for each alert of [alerts.yaml](../metrics/alerts.yaml). The panels are those of\n[dashboard.json](../metrics/dashboard.json). [alerts.md](alerts.md) shows how to install both.\nThis page is generated from the definitions of the alerts.\n")
	for _, a := range alerts() {
		fmt.Fprintf(&b, "\n## %s\n\n**Means.** %s\n\n**Look.** %s\n\n**Do.** %s\n", a.name, a.runbook.means, a.runbook.look, a.runbook.do)
		if a.runbook.last != "" {
			fmt.Fprintf(&b, "\n**Last resort.** %s\n", a.runbook.last)
		}
		fmt.Fprintf(&b, "\n**Do not.** %s\n", strings.TrimPrefix(a.runbook.not, "Do not "))
	}
	return b.Bytes()
}

// golden compares a file with its generated content.
func golden(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not what its definition generates (-want +got); run go test ./metrics -run 'TestAlerts|TestDashboard' -update:\n%s", path, diff)
	}
}

// TestLeast: two keys that always fail do not page, three do, and one is a ticket within six hours.
func TestLeast(t *testing.T) {
	calls := func(keys int, window time.Duration) (n int) {
		limiter := queue.Exponential[int](0, 0)
		for key := range keys {
			for at := time.Duration(0); at < window; at += limiter.When(key) {
				n++
			}
		}
		return n
	}
	for _, tt := range []struct {
		window string
		length time.Duration
	}{{"1h", time.Hour}, {"6h", 6 * time.Hour}} {
		two, three, least := calls(2, tt.length), calls(3, tt.length), least(ofErrors, tt.window)
		if two >= least || three < least {
			t.Errorf("in %s two keys have %d calls, and three have %d: the least number for a page is %d, want it between them", tt.window, two, three, least)
		}
	}
	if one, least := calls(1, 6*time.Hour), least(ofErrors, "1d"); one < least {
		t.Errorf("in 6h one key has %d calls, want at least %d for a ticket", one, least)
	}
	if first, hour := calls(1, time.Minute), calls(1, time.Hour); first < 14 || first > 16 || hour < 28 || hour > 36 {
		t.Errorf("one key has %d calls in a minute and %d in an hour, docs/alerts.md says 15 and 32", first, hour)
	}
}

// TestAlerts: alerts.yaml and docs/runbooks.md are generated from the definitions, whose
// metrics all exist.
func TestAlerts(t *testing.T) {
	golden(t, "alerts.yaml", rules(false))
	golden(t, "../docs/runbooks.md", page())
	seen := map[string]bool{}
	for _, a := range alerts() {
		if seen[a.name] {
			t.Errorf("two alerts have the name %s", a.name)
		}
		seen[a.name] = true
		if a.runbook.means == "" || a.runbook.look == "" || a.runbook.do == "" || a.runbook.not == "" || a.summary == "" || len(a.fires) == 0 || len(a.quiet) == 0 {
			t.Errorf("%s lacks a part of its runbook, its summary or a test", a.name)
		}
		checkQuery(t, a.name, a.expr)
	}
	for _, r := range recordings() {
		checkQuery(t, r.name, r.expr)
	}
}

var identifier = regexp.MustCompile(`\b(controller|informer|workqueue|rest_client|leader_election|reflector)_\w+\b|\bcontroller:\w+:\w+`)

// checkQuery fails for a family that Metrics does not have, or a form of it that its type
// does not have.
func checkQuery(t *testing.T, where, query string) {
	t.Helper()
	types := familyTypes(t)
	for _, name := range identifier.FindAllString(query, -1) {
		base := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if b, ok := strings.CutSuffix(name, suffix); ok && types[b] == "histogram" {
				base = b
			}
		}
		switch {
		case strings.Contains(name, ":"):
			found := false
			for _, r := range recordings() {
				found = found || r.name == name
			}
			if !found {
				t.Errorf("%s uses the recording %s, which does not exist", where, name)
			}
		case types[base] == "":
			t.Errorf("%s uses %s, which package metrics does not have", where, name)
		case types[base] == "histogram" && base == name:
			t.Errorf("%s uses the histogram %s without _bucket, _sum or _count", where, name)
		}
	}
}

// familyTypes returns the type of each family.
func familyTypes(t *testing.T) map[string]string {
	t.Helper()
	m, reg := newMetrics(t)
	use(t, m)
	return gatheredTypes(t, reg)
}

func gatheredTypes(t *testing.T, g prometheus.Gatherer) map[string]string {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	for _, f := range families {
		types[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	return types
}
