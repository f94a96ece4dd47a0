package findings

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/controllertest"
)

// A known finding is a section of docs/findings.md.
type known struct {
	title    string // of the section
	scenario controllertest.Scenario
	plan     string // the minimal one
	oracle   controllertest.Oracle
	text     string   // part of the text of the finding
	also     []string // parts of the texts of other findings of the same bug
	in       []string // the first faults of the plans that have them; if empty, all
}

func all() []known {
	return []known{{
		title:    "A StatefulSet stays at 2 of 3 Pods",
		scenario: statefulSet(),
		plan:     "next-step(persistentvolumeclaims)@update statefulsets.apps/status web status.observedGeneration#1",
		oracle:   controllertest.Liveness,
		text:     "2 Pods, of which 2 are ready, want 3",
		in:       []string{"time-travel("},
		also:     []string{"3 Pods, of which 2 are ready, want 3"},
	}, {
		title:    "A claim is left after a scale-down",
		scenario: statefulSet(),
		plan:     "time-travel(persistentvolumeclaims<start)@update persistentvolumeclaims data-web-2 metadata.ownerReferences#1",
		oracle:   controllertest.Liveness,
		text:     "3 claims, want 2",
	}, {
		title:    "A StatefulSet takes an older size after a restart",
		scenario: statefulSet(),
		plan:     "time-travel(statefulsets.apps<update statefulsets.apps/status web status.currentReplicas,status.replicas,status.updatedReplicas#1)@update statefulsets.apps/status web status.observedGeneration#1",
		oracle:   controllertest.Events,
		text:     "pods/web-2 was created 3 times, without faults 2 times",
		in:       []string{"time-travel(statefulsets."},
		also:     []string{"persistentvolumeclaims/data-web-2 was created 3 times", "persistentvolumeclaims/data-web-2 was deleted 2 times", "pods/web-2 was deleted 3 times"},
	}, {
		title:    "A finished Job leaves Pods that run and keep their finalizer",
		scenario: jobs(),
		plan:     "time-travel(pods<start)@delete pods late-*#1",
		oracle:   controllertest.Liveness,
		text:     "has the tracking finalizer",
		in:       []string{"time-travel("},
		also:     []string{"- jobs.batch/late .status.failed: 2"},
	}, {
		title:    "A Job names the wrong reason of its failure",
		scenario: jobs(),
		plan:     "crash-after@delete pods late-*#1",
		oracle:   controllertest.EndState,
		text:     "BackoffLimitExceeded, without faults DeadlineExceeded",
		also:     []string{"Job has reached the specified backoff limit, without faults Job was active longer"},
	}, {
		title:    "A finished Job runs again",
		scenario: jobs(),
		plan:     "time-travel(jobs.batch<create pods done-*#1)@patch pods late-* metadata.$deleteFromPrimitiveList/finalizers#1",
		oracle:   controllertest.Events,
		text:     "pods/done-* was created 4 times, without faults 2 times",
		in:       []string{"time-travel("},
		also:     []string{"pods/done-* was deleted 4 times", "pods/late-* was created 4 times", "- pods/done-*", "+ pods/done-*", "jobs.batch/late .status.failed: 4"},
	}, {
		title:    "A CronJob runs twice for one scheduled time",
		scenario: cronJob(),
		plan:     "stall(cronjobs.batch)@create jobs.batch report-28486080#1",
		oracle:   controllertest.Events,
		text:     "/report-28486080",
	}, {
		title:    "A CronJob without a history loses the time of its last success",
		scenario: cronJob(),
		plan:     "crash-after@delete jobs.batch report-28486080#1",
		oracle:   controllertest.Liveness,
		text:     "the status has no lastSuccessfulTime",
	}, {
		title:    "A namespace has more Pods than its quota",
		scenario: quota(),
		plan:     "next-step(pods)@update resourcequotas/status pods status.hard,status.used#1",
		oracle:   controllertest.Liveness,
		text:     "4 Pods, the quota is 3",
		also:     []string{"pods/c was created 1 times"},
	}, {
		title:    "A deleted EndpointSlice does not come back",
		scenario: endpointSlices(),
		plan:     "crash-after@create endpointslices.discovery.k8s.io web-*#1",
		oracle:   controllertest.Liveness,
		text:     "0 endpoints, want 1",
	}, {
		title:    "A Deployment with the strategy Recreate runs two versions at once",
		scenario: recreate(),
		plan:     "stall(pods)@create pods web-67476f6494-*#1",
		oracle:   controllertest.Invariance,
		text:     "Pods of two versions exist at the same time",
	}, {
		title:    "A Deployment keeps the condition of its former rollout",
		scenario: recreate(),
		plan:     "crash-after@create replicasets.apps web-5df569b99b#1",
		oracle:   controllertest.EndState,
		text:     `.status.conditions[Progressing].message: ReplicaSet "web-67476f6494" has successfully progressed.`,
	}, {
		title:    "A DaemonSet rolls its former image out again",
		scenario: daemonSet(),
		plan:     "time-travel(daemonsets.apps<create controllerrevisions.apps agent-c674448cc#1)@create pods agent-*#5",
		oracle:   controllertest.EndState,
		text:     ".revision: 3, without faults 1",
		in:       []string{"time-travel("},
		also:     []string{".revision: "},
	}, {
		title:    "A JobSet stays unfinished after one failed write",
		scenario: jobSets(),
		plan:     "drop-request@update jobsets.jobset.x-k8s.io/status good status.conditions,status.replicatedJobsStatus,status.terminalState#1",
		oracle:   controllertest.Liveness,
		text:     `the JobSet good is ""`,
		in:       failedWrites("update jobsets.jobset.x-k8s.io/status "),
		also:     []string{`the JobSet bad is ""`, "the Jobs of the JobSet "}, // of the upgrades
	}, {
		title:    "A JobSet runs a failed attempt again",
		scenario: jobSets(),
		plan:     "time-travel(jobsets.jobset.x-k8s.io<create services bad#1)@create jobs.batch bad-w-0#2",
		oracle:   controllertest.Events,
		text:     "jobs.batch/bad-w-0 was created 3 times, without faults 2 times",
		in:       []string{"time-travel(jobsets."},
		also:     []string{"jobs.batch/bad-w-0 was deleted 3 times", "pods/bad-w-0-0-* was deleted 3 times", "pods/bad-w-0-0-* was created 3 times"},
	}, {
		title:    "JobSet deletes a finished Job and its logs",
		scenario: jobSets(),
		plan:     "time-travel(jobs.batch<update jobsets.jobset.x-k8s.io/status bad status.replicatedJobsStatus#4)@create jobs.batch good-w-0#1",
		oracle:   controllertest.EndState,
		text:     "- jobs.batch/bad-w-0: exists",
		in:       []string{"time-travel(jobs."},
		also:     []string{"- jobs.batch/bad-w-0", "jobsets.jobset.x-k8s.io/bad .status.replicatedJobsStatus[w].failed: 0", "- pods/bad-w-0-0-*"},
	}, {
		title:    "cert-manager issues again while its cache of Secrets is late",
		scenario: withoutAccept(certificates()), // which accepts that there are more requests
		plan:     "hold(secrets)@update certificaterequests.cert-manager.io/status web-1 status.ca,status.certificate,status.conditions#1",
		oracle:   controllertest.Events,
		text:     "certificaterequests.cert-manager.io/web-3 was created 1 times, without faults 0 times",
		in:       []string{"hold(secrets", "hold-relist(secrets", "stall(secrets", "410(secrets", "410-start(secrets", "no-bookmark(secrets", "time-travel(secrets"},
		also:     []string{"- certificaterequests.cert-manager.io/web-", "+ certificaterequests.cert-manager.io/web-", "certificates.cert-manager.io/web .status.revision: "},
	}, {
		title:    "A deleted aggregated ClusterRole comes back with its rights",
		scenario: roles(),
		plan:     "user-delete(clusterroles.rbac.authorization.k8s.io/$ns-all)@apply clusterroles.rbac.authorization.k8s.io $ns-all rules#2",
		oracle:   controllertest.Liveness,
		text:     "a deleted role is back with the rights",
	}, {
		title:    "A ClusterRole gets the rights of the aggregated one that it replaces",
		scenario: limited(roles()),
		plan:     "step-before@apply clusterroles.rbac.authorization.k8s.io $ns-all rules#2",
		oracle:   controllertest.Liveness,
		text:     "a replaced role has the rights",
	}, {
		title:    "A finished Pod gets its ResourceClaim again",
		scenario: resourceClaims(),
		plan:     "user-edit(pods/work)@apply pods/status work status.resourceClaimStatuses#1",
		oracle:   controllertest.Invariance,
		text:     "the Pod has ended, and gets another claim",
		also:     []string{"resourceclaims.resource.k8s.io/work-gpu-* was created ", "resourceclaims.resource.k8s.io/work-gpu-* was deleted "},
	}, {
		title:    "A ServiceAccount keeps a reference to a deleted Secret",
		scenario: tokens(),
		plan:     "500@update serviceaccounts bot secrets#1",
		oracle:   controllertest.Liveness,
		text:     "the account refers to a deleted Secret",
	}, {
		title:    "A deleted Service keeps its Endpoints",
		scenario: endpoints(),
		plan:     "time-travel(endpoints<create endpoints web#1)@delete endpoints web#1",
		oracle:   controllertest.Liveness,
		text:     "the Endpoints of a deleted Service are left",
	}, {
		title:    "A PodDisruptionBudget allows no disruption after two failed reads",
		scenario: disruptions(),
		plan:     "outage(get deployments.apps/scale 500 x20)@get deployments.apps/scale web#1",
		oracle:   controllertest.Liveness,
		text:     "the last sync of the budget failed",
	}, {
		title:    "A ready Node keeps the taint of one that is not ready",
		scenario: nodeLifecycle(),
		plan:     "outage(nodes 503 x8)@patch nodes $ns-y spec.taints#1",
		oracle:   controllertest.Liveness,
		text:     "is ready: true, its taint NoSchedule exists: true",
		also:     []string{"its taint NoSchedule exists: "},
	}, {
		title:    "A ServiceCIDR with a used address is deleted beside another one",
		scenario: serviceCIDRs(),
		plan:     "two-steps@apply servicecidrs.networking.k8s.io/status $ns-two status.conditions#1",
		oracle:   controllertest.Invariance,
		text:     "no ServiceCIDR has the address of the Service",
	}, {
		title:    "A tainted Node evicts a Pod that has moved to another Node",
		scenario: taintEviction(),
		plan:     "step-before@delete pods now#1",
		oracle:   controllertest.Liveness,
		text:     "the Pod now was moved to another Node, and is gone",
		also:     []string{"the Pod moved was moved to another Node, and is gone", "pods/now was ", "- pods/now", "pods/moved was ", "- pods/moved"},
	}, {
		title:    "A Pod stays on a tainted Node after five failed deletions",
		scenario: taintEviction(),
		plan:     "outage(delete pods 500 x20)@delete pods now#1",
		oracle:   controllertest.Liveness,
		text:     "is left on the Node",
	}}
}

// has reports whether a finding of a plan is of the bug.
func (k known) has(f controllertest.Finding, plan string) bool {
	if f.Oracle == k.oracle && strings.Contains(f.Text, k.text) {
		return true
	}
	begins := func(fault string) bool { return strings.HasPrefix(plan, fault) }
	return (len(k.in) == 0 || slices.ContainsFunc(k.in, begins)) &&
		slices.ContainsFunc(k.also, func(text string) bool { return strings.Contains(f.Text, text) })
}

// failedWrites returns the faults at a write that let it fail.
func failedWrites(write string) (faults []string) {
	for _, kind := range []controllertest.Kind{
		controllertest.DropRequest, controllertest.LostResponse, controllertest.Truncated, controllertest.ResetConns,
		controllertest.Forbidden, controllertest.Invalid, controllertest.TooManyRequests, controllertest.InternalError,
		controllertest.Unavailable, controllertest.Timeout, controllertest.CommitThen503,
	} {
		faults = append(faults, string(kind)+"@"+write)
	}
	return append(faults, string(controllertest.Outage)+"(")
}

// allowed returns why a finding is not listed as a bug, or "".
func allowed(scenario string, f controllertest.Finding, plan string) string {
	travels := strings.HasPrefix(plan, string(controllertest.TimeTravel)+"(")
	repeats := strings.HasPrefix(plan, string(controllertest.ResetConns)+"@create pods ") || strings.HasPrefix(plan, string(controllertest.CommitThen503)+"@create pods ")
	pods := f.Oracle == controllertest.Events && strings.HasPrefix(f.Object, "pods/")
	switch scenario {
	case jobs().Name:
		if repeats && (strings.HasPrefix(f.Object, "pods/") || strings.Contains(f.Field, "status.succeeded")) {
			return "a program may be started twice"
		}
	case rollout().Name, recreate().Name, daemonSet().Name:
		switch {
		case (travels || repeats) && pods:
			return "no kind promises at most one Pod"
		case travels && f.Oracle == controllertest.EndState && strings.Contains(f.Field, "deployment.kubernetes.io/revision"):
			return "a Deployment rolls its former template out and back"
		}
	case endpoints().Name:
		if strings.HasPrefix(plan, "time-travel(services<") && f.Oracle == controllertest.Events && f.Object == "endpoints/web" {
			return "Endpoints follow an old list of Services"
		}
	case mirroring().Name:
		repeats := strings.HasPrefix(plan, string(controllertest.CommitThen503)+"@create endpointslices")
		if (travels || repeats) && f.Oracle == controllertest.Events && strings.HasPrefix(f.Object, "endpointslices.") {
			return "a slice too many is deleted again"
		}
	case garbage().Name:
		if travels && f.Oracle == controllertest.Invariance && f.Field == "a dependent that blocks goes first" {
			return "only dependents in the cache block their owner"
		}
	}
	return ""
}

func withoutAccept(s controllertest.Scenario) controllertest.Scenario {
	s.Accept = nil
	return s
}

// options are those of every exploration. Each run has its own controllers and actors, so
// fewer runs than usual are parallel.
func options() controllertest.Options {
	return controllertest.Options{QuietPeriod: 1500 * time.Millisecond, ConvergeTimeout: 45 * time.Second, Parallel: 8}
}

// TestKnown holds that most runs of the minimal plan of a known finding have it: if a new
// version of the controller does not, the page is out of date. A restart on an old list is a
// race with the watch, which a loaded machine can lose. With EXPLORE_BUDGET each plan runs ten
// times.
func TestKnown(t *testing.T) {
	page, err := os.ReadFile("../../docs/findings.md")
	if err != nil {
		t.Fatal(err)
	}
	replayed := 0
	for _, k := range all() {
		t.Run(k.title, func(t *testing.T) {
			for _, want := range []string{"## " + k.title + "\n", "`" + k.plan + "`"} {
				if !strings.Contains(string(page), want) {
					t.Errorf("docs/findings.md does not contain %q", want)
				}
			}
			o := options()
			o.Plans = []string{k.plan}
			if os.Getenv("EXPLORE_BUDGET") != "" {
				o.Confirm = 9
			}
			report, err := controllertest.Run(t.Context(), k.scenario, o)
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Failures) == 0 {
				t.Fatalf("the plan passes\n%s", report)
			}
			f := report.Failures[0]
			for _, finding := range f.Findings {
				if finding.Oracle == k.oracle && strings.Contains(finding.Text, k.text) {
					t.Logf("%d of %d runs: %s: %s", finding.Failed, f.Runs, finding.Oracle, finding.Text)
					if 10*finding.Failed >= 9*f.Runs {
						replayed++
					}
					if 2*finding.Failed <= f.Runs {
						t.Error("fewer than most runs have the finding")
					}
					return
				}
			}
			t.Errorf("the plan fails in another way\n%s", f)
		})
	}
	if os.Getenv("EXPLORE_BUDGET") != "" {
		t.Logf("%d of %d plans fail in nine of ten runs", replayed, len(all()))
	}
}

// TestDefaultRights holds that a deleted ClusterRole does not come back if the controller has the
// rights that Kubernetes gives it by default.
func TestDefaultRights(t *testing.T) {
	o := options()
	for _, k := range all() {
		if k.scenario.Name == roles().Name {
			o.Plans = []string{k.plan}
			break
		}
	}
	report, err := controllertest.Run(t.Context(), limited(roles()), o)
	if err != nil {
		t.Fatal(err)
	}
	if report.Valid != 1 || len(report.Failures) > 0 {
		t.Errorf("%d valid plans, want 1 without a failure\n%s", report.Valid, report)
	}
}

// TestUpstream holds that each known finding has a text to be filed, with its plan.
func TestUpstream(t *testing.T) {
	files, err := filepath.Glob("upstream/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	other := regexp.MustCompile(`[^a-z0-9]+`)
	for _, k := range all() {
		file := filepath.Join("upstream", other.ReplaceAllString(strings.ToLower(k.title), "-")+".md")
		texts = append(texts, file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, want := range []string{"# " + k.title + "\n", "`" + k.plan + "`", "^" + strings.ReplaceAll(k.title, " ", "_") + "$"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s does not contain %q", file, want)
			}
		}
		if n := len(strings.Fields(string(text))); n < 150 || n > 300 {
			t.Errorf("%s has %d words, want 150 to 300", file, n)
		}
	}
	for _, file := range files {
		if !slices.Contains(texts, file) {
			t.Errorf("%s is of no known finding", file)
		}
	}
}

// TestExplore fails for findings that are not in docs/findings.md. By default it runs a
// sample of the plans, and with EXPLORE_BUDGET, for example 10m, plans until that time has
// passed.
func TestExplore(t *testing.T) {
	for _, s := range []controllertest.Scenario{
		statefulSet(), jobs(), rollout(), endpointSlices(), cronJob(), quota(), recreate(), daemonSet(),
		sample(), jobSets(), garbage(), certificates(), orders(), caInjector(),
		certManagerUpgrade(), back(certManagerUpgrade()),
		jobSetUpgrade(), back(jobSetUpgrade()), nextJobSetUpgrade(), back(nextJobSetUpgrade()),
		roles(), resourceClaims(), tokens(), endpoints(),
		mirroring(), ttlAfterFinished(), accounts(), claimProtection(), ephemeralVolumes(), volumes(), disruptions(),
		autoscaler(), serviceCIDRs(), taintEviction(), nodeLifecycle(), deviceTaints(), certificateRequests(),
	} {
		t.Run(s.Name, func(t *testing.T) {
			o := options()
			o.Folder, o.Sample = os.Getenv("FOLDER"), 16
			if text := os.Getenv("EXPLORE_BUDGET"); text != "" {
				var err error
				if o.Budget, err = time.ParseDuration(text); err != nil {
					t.Fatalf("EXPLORE_BUDGET: %v", err)
				}
				o.Sample = 0
			}
			if s.Name == garbage().Name {
				t.Setenv("CONTROLPLANE", withoutCollector(t))
			}
			own := s.Accept
			s.Accept = func(f controllertest.Finding, plan string) string {
				for _, k := range all() {
					if (k.scenario.Name == s.Name || k.scenario.Name == path.Base(s.Name)) && k.has(f, plan) {
						return "docs/findings.md: " + k.title
					}
				}
				if reason := allowed(s.Name, f, plan); reason != "" {
					return "docs/findings.md: Not listed: " + reason
				}
				if own != nil {
					return own(f, plan)
				}
				return ""
			}
			controllertest.Explore(t, s, o)
		})
	}
}

// withoutCollector returns a program that runs controlplane without its garbage collector.
func withoutCollector(t *testing.T) string {
	t.Helper()
	program := os.Getenv("CONTROLPLANE")
	if program == "" {
		t.Fatal("CONTROLPLANE is not set: run make findings")
	}
	script := filepath.Join(t.TempDir(), "controlplane")
	if err := os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec '%s' -garbage-collector=false \"$@\"\n", program), 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}
