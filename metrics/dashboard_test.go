package metrics_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// A row of the dashboard, and its panels.
type row struct {
	title  string
	repeat string // a variable: one row for each of its values
	panels []panel
}

// A panel has one query or several, with legends.
type panel struct {
	title, help, unit string
	queries           [][2]string
}

// Selectors of the dashboard. The queue of a controller has its name.
const (
	ofController = `{job="$job", controller="$controller"}`
	ofQueue      = `{job="$job", name="$controller"}`
	ofJob        = `{job="$job"}`
	window       = `[$__rate_interval]`
)

func rows() []row {
	quantile := func(q, name, selector, by string) string {
		return fmt.Sprintf("histogram_quantile(%s, sum by (le%s) (rate(%s_bucket%s%s)))", q, by, name, selector, window)
	}
	rate := func(by, name, selector string) string {
		return fmt.Sprintf("sum by (%s) (rate(%s%s%s))", by, name, selector, window)
	}
	sum := func(by, name, selector string) string { return fmt.Sprintf("sum by (%s) (%s%s)", by, name, selector) }
	highest := func(by, name, selector string) string { return fmt.Sprintf("max by (%s) (%s%s)", by, name, selector) }
	return []row{
		{title: "Controller $controller", repeat: "controller", panels: []panel{
			{"Reconciles by result", "Calls a second. The package reconcile explains the results.", "ops", [][2]string{{rate("result", "controller_reconcile_total", ofController), "{{result}}"}}},
			{"Event to success", "From the first event of a key to the end of the reconcile that succeeded.", "s", [][2]string{
				{quantile("0.5", "controller_reconcile_latency_seconds", ofController, ""), "p50"},
				{quantile("0.99", "controller_reconcile_latency_seconds", ofController, ""), "p99"},
			}},
			{"Duration", "Of one call, the 99th percentile by result.", "s", [][2]string{{quantile("0.99", "controller_reconcile_duration_seconds", ofController, ", result"), "{{result}}"}}},
			{"Depth", "Keys that are ready and wait for a worker.", "short", [][2]string{{sum("instance", "workqueue_depth", ofQueue), "{{instance}}"}}},
			{"Adds", "Keys added and keys tried again, a second.", "ops", [][2]string{
				{rate("job", "workqueue_adds_total", ofQueue), "adds"},
				{rate("job", "workqueue_retries_total", ofQueue), "retries"},
			}},
			{"Time in the queue", "Of a ready key, the 99th percentile.", "s", [][2]string{{quantile("0.99", "workqueue_queue_duration_seconds", ofQueue, ""), "p99"}}},
			{"Active workers", "Workers that run a key, and all workers.", "short", [][2]string{
				{sum("job", "controller_active_workers", ofController), "active"},
				{sum("job", "controller_workers", ofController), "workers"},
			}},
			{"Longest running", "The key that has run for the longest time.", "s", [][2]string{{highest("instance", "workqueue_longest_running_processor_seconds", ofQueue), "{{instance}}"}}},
			{"Keys that wait", "Keys that wait for their caches (waiting) or for their next event (parked).", "short", [][2]string{{sum("state", "controller_keys", ofController), "{{state}}"}}},
			{"Failing keys", "Keys whose last call failed, by result, and all objects of the controller.", "short", [][2]string{
				{sum("result", "controller_failing_keys", ofController), "{{result}}"},
				{sum("job", "controller_objects", ofController), "objects"},
			}},
			{"Delays of hot keys", "Times a second that a key was delayed because it ran too often.", "ops", [][2]string{{rate("job", "controller_reconcile_held_total", ofController), "delays"}}},
			{"Writes", "Applies and writes of a status, sent or skipped.", "ops", [][2]string{{rate("kind, result", "controller_writes_total", ofController), "{{kind}} {{result}}"}}},
		}},
		{title: "Objects", panels: []panel{
			{"Objects by condition", "Objects of a resource by the type, status and reason of each condition.", "short", [][2]string{{highest("resource, condition, status, reason", "controller_object_conditions", ofJob), "{{resource}} {{condition}} {{status}} {{reason}}"}}},
			{"Objects that are not ready", "Without those that an annotation pauses, unless they are being deleted.", "short", [][2]string{{highest("resource", "controller_not_ready_objects", ofJob), "{{resource}}"}}},
			{"Oldest object that is not ready", "Time for which it has not been ready.", "s", [][2]string{{highest("resource", "controller_not_ready_oldest_seconds", ofJob), "{{resource}}"}}},
			{"Paused objects", "Objects that an annotation pauses.", "short", [][2]string{{highest("resource", "controller_paused_objects", ofJob), "{{resource}}"}}},
		}},
		{title: "Election", panels: []panel{
			{"Leader", "1 for the replica that holds the Lease.", "short", [][2]string{{highest("name, instance", "leader_election_master_status", ofJob), "{{name}} {{instance}}"}}},
			{"Replicas that see a leader", "All of them, except while the Lease is free, or for a replica that cannot use the API server.", "short", [][2]string{{sum("name", "controller_leader_seen", ofJob), "{{name}}"}}},
			{"Changes", "Terms begun in an hour.", "short", [][2]string{{fmt.Sprintf("sum by (name) (increase(controller_leader_transitions_total%s[1h]))", ofJob), "{{name}}"}}},
			{"Time without a leader", "Seconds in an hour for which a replica saw the Lease free.", "s", [][2]string{{fmt.Sprintf("max by (name) (increase(controller_leader_absent_seconds_total%s[1h]))", ofJob), "{{name}}"}}},
			{"Renewals", "Duration of a renewal, the 99th percentile, and renewals that were late.", "s", [][2]string{
				{quantile("0.99", "controller_leader_renewal_duration_seconds", ofJob, ", name"), "{{name}}"},
				{rate("name", "controller_leader_slow_renewals_total", ofJob), "{{name}} late, a second"},
			}},
			{"Acquisition", "From a free Lease to the new leader, the 99th percentile.", "s", [][2]string{{quantile("0.99", "controller_leader_acquire_duration_seconds", ofJob, ", name"), "{{name}}"}}},
		}},
		{title: "Shards", panels: []panel{
			{"Owned shards", "Shards of each replica.", "short", [][2]string{{sum("name, instance", "controller_shards_owned", ofJob), "{{name}} {{instance}}"}}},
			{"Imbalance", "Shards of the replica with the most, divided by the mean. 1 is balanced.", "short", [][2]string{{fmt.Sprintf("max by (name) (controller_shards_owned%s) / avg by (name) (controller_shards_owned%s)", ofJob, ofJob), "{{name}}"}}},
			{"Shards without an owner, and surplus", "Shards whose objects no replica reconciles, and shards that must move because their replicas own more than their share.", "short", [][2]string{
				{fmt.Sprintf("min by (name) (controller_shards_ownerless%s)", ofJob), "{{name}} without an owner"},
				{highest("name", "controller_shards_surplus", ofJob), "{{name}} surplus"},
			}},
			{"Time without an owner", "Seconds in an hour, all shards together, as the replica that saw the most.", "s", [][2]string{{fmt.Sprintf("max by (name) (increase(controller_shards_ownerless_seconds_total%s[1h]))", ofJob), "{{name}}"}}},
			{"Moves", "Shards that began in a replica, in an hour.", "short", [][2]string{{fmt.Sprintf("sum by (name, instance) (increase(controller_shards_began_total%s[1h]))", ofJob), "{{name}} {{instance}}"}}},
		}},
		{title: "API client and caches", panels: []panel{
			{"Requests", "A second, by code.", "reqps", [][2]string{{rate("code", "rest_client_requests_total", ofJob), "{{code}}"}}},
			{"Requests by method", "A second.", "reqps", [][2]string{{rate("method", "rest_client_requests_total", ofJob), "{{method}}"}}},
			{"Latency of requests", "The 99th percentile by verb.", "s", [][2]string{{quantile("0.99", "rest_client_request_duration_seconds", ofJob, ", verb"), "{{verb}}"}}},
			{"Age of the last event", "Time since an informer received an event, a bookmark or a list: about a minute at most.", "s", [][2]string{{highest("name, instance", "controller_informer_last_event_age_seconds", ofJob), "{{name}} {{instance}}"}}},
			{"Watches and lists", "Lists and ended watches of informers, a second.", "ops", [][2]string{
				{rate("name", "reflector_lists_total", ofJob), "{{name}} lists"},
				{rate("name", "reflector_watches_total", ofJob), "{{name}} watches"},
			}},
			{"Objects in caches", "Objects that the informers hold.", "short", [][2]string{{sum("name, instance", "controller_informer_objects", ofJob), "{{name}} {{instance}}"}}},
			{"Memory of caches", "Estimate of the heap that these objects take.", "bytes", [][2]string{{sum("name, instance", "controller_informer_bytes", ofJob), "{{name}} {{instance}}"}}},
			{"Malformed objects", "Objects that an informer cannot decode.", "short", [][2]string{{highest("name", "controller_informer_malformed_objects", ofJob), "{{name}}"}}},
			{"Changed caches", "Objects in caches that the program changed, found in an hour.", "short", [][2]string{{fmt.Sprintf("sum by (name, instance) (increase(controller_informer_mutations_total%s[1h]))", ofJob), "{{name}} {{instance}}"}}},
			{"Latency of client-go's caches", "Time that client-go takes to store an event and to pass it to handlers, the 99th percentile, of informers with a name.", "s", [][2]string{{quantile("0.99", "informer_processing_latency_seconds", ofJob, ", name, resource"), "{{name}} {{resource}}"}}},
			{"Waits for caches", "Keys a second that waited until their caches showed their writes, by result.", "ops", [][2]string{{rate("result", "controller_consistency_wait_duration_seconds_count", ofJob), "{{result}}"}}},
		}},
		{title: "Cleanup, Events and stops", panels: []panel{
			{"Blocked objects", "Objects in deletion, by the step that blocks them.", "short", [][2]string{{sum("finalizer, step", "controller_finalizer_blocked_objects", ofJob), "{{finalizer}} {{step}}"}}},
			{"Oldest blocked object", "Time since its deletion request.", "s", [][2]string{{highest("finalizer, step", "controller_finalizer_blocked_oldest_seconds", ofJob), "{{finalizer}} {{step}}"}}},
			{"Calls of steps", "A second, by result: also timed_out and gave_up.", "ops", [][2]string{{rate("step, result", "controller_finalizer_step_duration_seconds_count", ofJob), "{{step}} {{result}}"}}},
			{"Events", "Recorded a second, by outcome.", "ops", [][2]string{{rate("outcome", "controller_events_total", ofJob), "{{outcome}}"}}},
			{"Stops", "Time that each part of the process took to stop, if a scrape saw it.", "s", [][2]string{{highest("part, result", "controller_shutdown_duration_seconds", ofJob), "{{part}} {{result}}"}}},
		}},
	}
}

type object = map[string]any

// dashboard returns dashboard.json.
func dashboard(t *testing.T) []byte {
	t.Helper()
	source := object{"type": "prometheus", "uid": "${datasource}"}
	variable := func(name, label, query string, all bool) object {
		return object{
			"name": name, "label": label, "type": "query", "datasource": source,
			"query": object{"query": query, "refId": name}, "refresh": 2, "sort": 1, "multi": all, "includeAll": all,
		}
	}
	const width, height = 8, 7
	var panels []any
	id, y := 0, 0
	for _, r := range rows() {
		id++
		head := object{"id": id, "type": "row", "title": r.title, "collapsed": false, "panels": []any{}, "gridPos": object{"h": 1, "w": 24, "x": 0, "y": y}}
		if r.repeat != "" {
			head["repeat"] = r.repeat
		}
		panels = append(panels, head)
		y++
		for i, p := range r.panels {
			id++
			var targets []any
			for j, q := range p.queries {
				targets = append(targets, object{"refId": string(rune('A' + j)), "datasource": source, "expr": q[0], "legendFormat": q[1], "range": true})
			}
			panels = append(panels, object{
				"id": id, "type": "timeseries", "title": p.title, "description": p.help, "datasource": source, "targets": targets,
				"gridPos":     object{"h": height, "w": width, "x": i % 3 * width, "y": y + i/3*height},
				"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []any{}},
				"options":     object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": object{"mode": "multi", "sort": "desc"}},
			})
		}
		y += (len(r.panels) + 2) / 3 * height
	}
	data, err := json.MarshalIndent(object{
		"title": "Controllers", "uid": "controllerkit", "description": "Controllers that use controllerkit: see docs/alerts.md.",
		"tags": []string{"kubernetes", "controllerkit"}, "schemaVersion": 39, "version": 1, "editable": true, "graphTooltip": 1,
		"refresh": "30s", "time": object{"from": "now-3h", "to": "now"}, "timezone": "", "annotations": object{"list": []any{}}, "links": []any{},
		"templating": object{"list": []any{
			object{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1},
			variable("job", "Job", "label_values(controller_workers, job)", false),
			variable("controller", "Controller", `label_values(controller_workers{job="$job"}, controller)`, true),
		}},
		"panels": panels,
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(data, '\n')
}

// TestDashboard: dashboard.json is generated from its definition, whose metrics all exist,
// and it has what Grafana needs to import it.
func TestDashboard(t *testing.T) {
	golden(t, "dashboard.json", dashboard(t))
	for _, r := range rows() {
		for _, p := range r.panels {
			for _, q := range p.queries {
				checkQuery(t, p.title, q[0])
			}
		}
	}
	data, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if problems := invalid(data); len(problems) > 0 {
		t.Errorf("dashboard.json: %s", strings.Join(problems, "\n"))
	}
}

// invalid returns what Grafana would refuse or not show.
func invalid(data []byte) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	type grid struct{ H, W, X, Y *int }
	var d struct {
		Title, UID    string
		SchemaVersion int
		Templating    struct {
			List []struct{ Name, Type string }
		}
		Panels []struct {
			ID                  int
			Type, Title, Repeat string
			GridPos             *grid
			Datasource          struct{ Type, UID string }
			Targets             []struct {
				RefID, Expr string
				Datasource  struct{ Type, UID string }
			}
		}
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return []string{err.Error()}
	}
	if d.Title == "" || d.UID == "" || len(d.UID) > 40 || d.SchemaVersion < 30 || len(d.Panels) == 0 {
		bad("title, uid of at most 40 bytes, schemaVersion from 30 and panels are required")
	}
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		if variables[v.Name] != "" || v.Name == "" || v.Type == "" {
			bad("variable %q has no type or comes twice", v.Name)
		}
		variables[v.Name] = v.Type
	}
	if variables["datasource"] != "datasource" {
		bad("there is no variable for the data source")
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		where := fmt.Sprintf("panel %d %q", p.ID, p.Title)
		if p.ID <= 0 || ids[p.ID] {
			bad("%s: id is not positive or not unique", where)
		}
		ids[p.ID] = true
		if p.Title == "" || p.Type != "row" && p.Type != "timeseries" {
			bad("%s: no title, or the unknown type %q", where, p.Type)
		}
		if p.Repeat != "" && variables[p.Repeat] == "" {
			bad("%s: repeats for the unknown variable %s", where, p.Repeat)
		}
		g := p.GridPos
		if g == nil || g.H == nil || g.W == nil || g.X == nil || g.Y == nil || *g.H < 1 || *g.W < 1 || *g.X < 0 || *g.Y < 0 || *g.X+*g.W > 24 {
			bad("%s: gridPos is incomplete or outside the 24 columns", where)
			continue
		}
		for x := *g.X; x < *g.X+*g.W; x++ {
			for y := *g.Y; y < *g.Y+*g.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" && other != where {
					bad("%s overlaps %s", where, other)
				}
				taken[[2]int{x, y}] = where
			}
		}
		if p.Type == "row" {
			continue
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if target.RefID == "" || refs[target.RefID] || target.Expr == "" {
				bad("%s: a target has no expr, or no refId of its own", where)
			}
			refs[target.RefID] = true
			if target.Datasource.UID != "${datasource}" || p.Datasource.UID != "${datasource}" || target.Datasource.Type != "prometheus" {
				bad("%s does not use the variable of the data source", where)
			}
			for word := range strings.FieldsFuncSeq(target.Expr, func(r rune) bool { return !(r == '$' || r == '_' || r >= 'a' && r <= 'z') }) {
				if name, ok := strings.CutPrefix(word, "$"); ok && name != "__rate_interval" && variables[name] == "" {
					bad("%s uses the unknown variable %s", where, name)
				}
			}
		}
		if len(refs) == 0 {
			bad("%s has no target", where)
		}
	}
	return problems
}

// TestInvalidDashboards: the rules of TestDashboard find each mistake.
func TestInvalidDashboards(t *testing.T) {
	good := string(dashboard(t))
	for _, edit := range [][2]string{
		{`"uid": "controllerkit"`, `"uid": ""`},
		{`"id": 2,`, `"id": 1,`},
		{`"refId": "B"`, `"refId": "A"`},
		{`"refId": "A"`, `"refId": ""`},
		{`"type": "timeseries"`, `"type": "graphs"`},
		{`"repeat": "controller"`, `"repeat": "lease"`},
		{`"name": "datasource"`, `"name": "source"`},
		{`"name": "job"`, `"name": "work"`},
		{`"x": 16`, `"x": 17`},
		{`"y": 8`, `"y": 7`},
		{`"uid": "${datasource}"`, `"uid": "prometheus-1"`},
		{`"panels": [`, `"panels": {`},
	} {
		if !strings.Contains(good, edit[0]) {
			t.Errorf("the dashboard has no %s", edit[0])
		}
		if len(invalid([]byte(strings.Replace(good, edit[0], edit[1], 1)))) == 0 && len(invalid([]byte(strings.ReplaceAll(good, edit[0], edit[1])))) == 0 {
			t.Errorf("%s instead of %s is not found", edit[1], edit[0])
		}
	}
}
