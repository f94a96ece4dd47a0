# The README uses make demo and make test. make help lists all targets.

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

# Build without version control stamps, so that a commit alone causes no rebuild.
export GOFLAGS += -buildvcs=false

TEST_FLAGS ?=
TEST_TIMEOUT ?= 30m
PACKAGES ?= ./...
RESULTS ?= bin/test

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z/-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: demo
demo: bin/controlplane bin/tenant ## run the tenant controller on a real API server, and print and check each step; KEEP=1 keeps it running
	@go run ./examples/tenant/demo -controlplane bin/controlplane -controller bin/tenant $(if $(KEEP),-keep)

.PHONY: test
test: compiler bin/controlplane bin/prometheus bin/promtool bin/flakes ## run all tests, also on the real API server
	@# Many tests wait for a server or a clock, so more tests run at once than cores exist. A busy
	@# machine without a build cache needs more than the 10 minutes that go test gives a package.
	go test -json -timeout $(TEST_TIMEOUT) -race -shuffle=on -p 4 -parallel 6 $(TEST_FLAGS) $(PACKAGES) | $(call record,root)
	@# The race detector changes the cost of a decision, and multiplies that of a measurement.
	go test -json -timeout $(TEST_TIMEOUT) -run '^(TestHostile|TestMemory|TestLimiterMemory|TestAllocations|TestOrders|TestMillionKeys|TestMistakeCachedObject|TestScrape)' $(TEST_FLAGS) ./ssa ./status ./status/fleet ./consistency ./owner ./queue ./debug ./enqueue/reads ./internal/mistakes | $(call record,costs)
	cd managerkit && go test -json -timeout $(TEST_TIMEOUT) -race -shuffle=on $(TEST_FLAGS) ./... | $(call record,managerkit)
	cd tracing && go test -json -timeout $(TEST_TIMEOUT) -race -shuffle=on $(TEST_FLAGS) ./... | $(call record,tracing)
	cd internal/grafanatest && go test -json -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) ./... | $(call record,grafanatest)
	cd controlplane && go test -json -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) ./... | $(call record,controlplane)
	cd internal/bench && go test -json -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) ./... | $(call record,bench)
	cd internal/gamedays && go test -json -timeout $(TEST_TIMEOUT) -race -parallel 5 $(TEST_FLAGS) ./... | $(call record,gamedays)

# record prints a stream of go test -json like go test, and stores it in RESULTS for make flakes.
record = "$(CURDIR)/bin/flakes" $(if $(filter -v,$(TEST_FLAGS)),-v) -out "$(abspath $(RESULTS))/$(1).json"

RUNS ?= 3

.PHONY: repeat
repeat: bin/flakes ## run make test RUNS (3) times, and list the tests that failed and passed
	@code=0; for ((run = 1; run <= $(RUNS); run++)); do \
		$(MAKE) test TEST_FLAGS="-count=1 $(TEST_FLAGS)" RESULTS="$(RESULTS)/run-$$run" || code=1; \
	done; \
	bin/flakes "$(RESULTS)" && exit $$code

VERSIONS ?= 1.34 1.35 1.36

.PHONY: versions
versions: bin/flakes ## run the tests that need a server on the API servers of older Kubernetes, VERSIONS (1.34 1.35 1.36): docs/versions.md; compiles each the first time
	@code=0; for version in $(VERSIONS); do \
		echo "=== Kubernetes $$version"; \
		.ci/progress controlplane "bin/controlplane-$$version" "etcd and kube-apiserver $$version" "some minutes" "-modfile=kubernetes-$$version.mod" . || exit 1; \
		export CONTROLPLANE="$(CURDIR)/bin/controlplane-$$version"; \
		go test -json -timeout $(TEST_TIMEOUT) -p 2 -run Server $(TEST_FLAGS) $(PACKAGES) | $(call record,versions/$$version/root) || code=1; \
		for module in managerkit tracing; do \
			(cd $$module && go test -json -timeout $(TEST_TIMEOUT) -run Server $(TEST_FLAGS) ./... | $(call record,versions/$$version/$$module)) || code=1; \
		done; \
	done; exit $$code

.PHONY: flakes
flakes: bin/flakes ## list the failed, the flaky and the slowest tests of the runs in the folder RESULTS (bin/test)
	@bin/flakes "$(RESULTS)"

.PHONY: compiler
compiler: # checks what the race detector needs
	@[ "$$(go env CGO_ENABLED)" = 1 ] && $$(go env CC) -E -include stdlib.h -x c /dev/null >/dev/null 2>&1 || { echo "make test needs a C compiler and the headers of libc: in Debian, apt-get install gcc libc6-dev"; exit 1; }

BUDGET ?= 40m
OPERATIONS ?= 100000000
SCHEDULES ?= 2000
HOSTILE ?= 5m
APPLIES ?= 20000
POINTS ?= 10000
SERVER_POINTS ?= 200
SCREENSHOTS ?=

# Each part of explore fits into a job of the nightly workflow: see .github/workflows/nightly.yml.
.PHONY: explore
explore: ## run all long explorations, which takes a day: explore-elections, explore-objects, explore-cluster, explore-scenarios, explore-hostile, explore-soak, kubectl, suites, findings, gamedays and gamedays-broken
	$(MAKE) explore-elections
	$(MAKE) explore-objects
	$(MAKE) explore-cluster
	$(MAKE) explore-scenarios
	$(MAKE) explore-hostile
	$(MAKE) explore-soak
	$(MAKE) kubectl
	$(MAKE) suites
	$(MAKE) findings
	$(MAKE) gamedays
	$(MAKE) gamedays-broken

.PHONY: explore-elections
explore-elections: bin/controlplane ## explore leader and shard: SCHEDULES (2000) of elections and models of shards
	go test -v -count=1 -timeout 0 -run '^TestSchedules$$' ./leader -schedules $(SCHEDULES)
	go test -v -count=1 -timeout 0 -run '^TestServerSchedules$$' ./shard -schedules 300
	go test -v -count=1 -timeout 0 -run '^TestServerRolling$$' ./shard -rolls 20
	go test -v -count=1 -timeout 0 -run '^TestServerSharded$$' ./examples/sharded -processes 8 -shards 32 -objects 5000
	go test -v -count=1 -timeout 0 -run '^(TestModel|TestRandom|TestSimulation)$$' ./shard -model-states 1000000 -random-seeds $(SCHEDULES) -simulated 64
	go test -v -count=1 -timeout 0 -run '^TestServerThrottledApplication$$' ./leader -throttled 10m
	go test -v -count=1 -timeout 0 -run '^TestServerSees$$' ./shard/filter -objects 5000 -moves 100

.PHONY: explore-objects
explore-objects: bin/controlplane ## explore the other packages: OPERATIONS (10^8) on the queue, APPLIES (20000) of random objects, POINTS (10000) of stops under load and SERVER_POINTS (200) on the API server
	go test -race -v -count=1 -timeout 0 -run '^(TestStress|TestLinearizable|TestNoWakeUpIsLost)$$' ./queue -operations $(OPERATIONS)
	go test -v -count=1 -timeout 0 -run '^TestModel$$' ./reconcile/internal/echoes -walks 1000000
	go test -race -v -count=1 -timeout 0 -run '^TestServerNoDuplicates$$' ./consistency -creations 10000
	go test -race -v -count=1 -timeout 0 -run '^TestServerCuts$$' ./informer -cuts 2000
	go test -race -v -count=1 -timeout 0 -run '^TestServerModel$$' ./informer/compact -steps 10000
	go test -v -count=1 -timeout 0 -run '^TestServerBeside$$' ./informer -beside 5
	go test -v -count=1 -timeout 0 -run '^TestSeriesDoNotGrow' ./metrics -names 1000000
	go test -race -v -count=1 -timeout 0 -run '^TestServerAgrees$$' ./ssa -applies $(APPLIES)
	go test -race -v -count=1 -timeout 0 -run '^(TestStopPoints|TestServerStopPoints)$$' ./examples -points $(POINTS) -server-points $(SERVER_POINTS)
	go test -v -count=1 -timeout 0 -run '^(TestServerSetCrash|TestServerSetRandom)$$' ./ssa/applyset -plans 500 -transitions 2000
	go test -race -v -count=1 -timeout 0 -run '^(TestServerPlans|TestServerRestarts)$$' ./crd/migrate -plans 500 -objects 2000
	go test -race -v -count=1 -timeout 0 -run '^TestServerUpgrades$$' ./preview -upgrades 50
	go test -v -count=1 -timeout 0 -run '^TestLives$$' ./external -lives 5000
	go test -v -count=1 -timeout 0 -p 1 -run '^TestServerPreview$$' ./examples/website/integration ./examples/tenant/integration ./examples/backup/controller -previewed 500

.PHONY: explore-cluster
explore-cluster: bin/controlplane ## explore a cluster of etcds and kube-apiservers, and the audit of caches: faults for BUDGET (40m) in each of three runs, and SCHEDULES (2000) of each package
	go test -race -v -count=1 -timeout 0 -run '^TestServerCluster$$' ./internal/clustertest -schedules $(SCHEDULES) -churn $(BUDGET) -moves $(BUDGET)
	go test -race -v -count=1 -timeout 0 -run '^TestServerAudit$$' ./informer -churn $(BUDGET)

.PHONY: explore-scenarios
explore-scenarios: bin/controlplane ## explore controllers with controllertest: injected faults for BUDGET (40m) in each of seven scenarios, and the zoo
	EXPLORE_BUDGET=$(BUDGET) go test -v -count=1 -timeout 0 -p 1 -run '^(TestReference|TestExplore|TestKill|TestServerKill)$$' ./controllertest/internal/zoo ./examples/tenant/integration ./examples/website/controller ./examples/website/integration ./examples/sharded
	EXPLORE_BUDGET=$(BUDGET) go test -v -count=1 -timeout 0 -run '^TestServerRented$$' ./operator
	EXPLORE_BUDGET=5m go test -v -count=1 -timeout 0 -run '^TestServerReaders$$' ./operator
	EXPLORE_BUDGET=5m go test -v -count=1 -timeout 0 -run '^TestServerKind$$' ./operator
	EXPLORE_BUDGET=10m go test -v -count=1 -timeout 0 -run '^TestExplore$$' ./examples/backup/controller
	go test -race -v -count=1 -timeout 0 -run '^TestServerKill$$' ./examples/backup/controller -kills 300
	go test -v -count=1 -timeout 0 -run '^TestUpgrade$$' ./controllertest -upgrade-plans 0
	EXPLORE_BUDGET=$(BUDGET) go test -v -count=1 -timeout 0 -run '^(TestTwins|TestMutants)$$' ./controllertest/internal/zoo
	cd tracing && EXPLORE_BUDGET=$(BUDGET) go test -v -count=1 -timeout 0 -run '^TestServerWebsites$$' .
	cd managerkit && EXPLORE_BUDGET=10m go test -v -count=1 -timeout 0 -p 1 -run '^TestExplore$$' ./examples/memcached ./examples/schedule

.PHONY: explore-hostile
explore-hostile: bin/controlplane ## read hostile objects for HOSTILE (5m) in each package that reads objects
	@for dir in $$(git grep -l 'func FuzzHostile(' -- '*_test.go' | xargs -n 1 dirname); do \
		echo "go test -run '^\$$' -fuzz '^FuzzHostile\$$' -fuzztime $(HOSTILE) -fuzzminimizetime 20x ./$$dir"; \
		go test -run '^$$' -fuzz '^FuzzHostile$$' -fuzztime $(HOSTILE) -fuzzminimizetime 20x "./$$dir" || exit 1; \
	done

.PHONY: explore-soak
explore-soak: ## make soak for six minutes with 50 objects
	$(MAKE) soak HOURS=0.1 OBJECTS=50 SOAK="$$(mktemp -d)"

.PHONY: findings
findings: bin/controlplane ## explore controllers of other projects for BUDGET (40m) each, and repeat the findings of docs/findings.md; compiles Kubernetes the first time
	cd internal/findings && go vet ./...
	cd internal/findings/internal/certmanager && go vet ./... && go vet -modfile=former.mod -tags=former ./...
	cd internal/findings/internal/jobset && go vet ./... && go vet -modfile=next.mod ./...
	cd internal/findings && CONTROLPLANE="$(CURDIR)/bin/controlplane" EXPLORE_BUDGET=$(BUDGET) go test -v -count=1 -timeout 0 $(TEST_FLAGS) ./...

.PHONY: gamedays
gamedays: bin/controlplane bin/prometheus ## let the operator live through all rows of docs/gamedays.md, and write that page
	cd internal/gamedays && go vet ./... && go mod tidy -diff && go test -v -count=1 -timeout 0 -parallel 6 $(TEST_FLAGS) -run '^TestGameDays$$' . -every -write

.PHONY: gamedays-broken
gamedays-broken: bin/controlplane bin/prometheus ## run all rows of docs/gamedays.md with an operator that does nothing from the start of the situation on: each must fail
	cd internal/gamedays && go test -v -count=1 -timeout 0 -parallel 6 $(TEST_FLAGS) -run '^TestBroken$$' . -every

.PHONY: kubectl
kubectl: bin/controlplane ## go the way of docs/crd-versions.md with its commands, hand sets of applyset to kubectl apply --applyset and back, and measure them beside kubectl and Flux in internal/bench/RESULTS.md; compiles them the first time
	cd internal/kubectltest && go vet ./... && go mod tidy -diff && go test -race -count=1 $(TEST_FLAGS) ./...
	cd internal/bench && go run ./cmd/bench -row applyset/beside

.PHONY: suites
suites: bin/controlplane ## run controller-runtime's own tests with the queue of managerkit.NewQueue, and the suites of two operators before and after the steps of docs/in-your-manager.md, and compare the differences with that page
	cd managerkit/internal/suites && go vet ./... && go mod tidy -diff && go test -v -count=1 -timeout 0 $(TEST_FLAGS) ./...

.PHONY: otlp
otlp: bin/controlplane ## run traced controllers that export to the receiver of an OpenTelemetry Collector, and compare with docs/tracing.md; the first build takes minutes
	cd tracing/internal/otlptest && go vet ./... && go mod tidy -diff && go test -race -count=1 $(TEST_FLAGS) ./...

.PHONY: browser
browser: bin/controlplane ## look at the debug page of a running operator with Debian's chromium; SCREENSHOTS=folder keeps pictures
	go test -count=1 -run '^TestServerBrowser$$' $(TEST_FLAGS) ./examples/website/integration -browser chromium -screenshots "$(SCREENSHOTS)"

.PHONY: check
check: bin/staticcheck bin/golangci-lint bin/govulncheck ## check formatting, vet (also for darwin and windows), linters, generated code, go.mod files and vulnerabilities
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w on these files"; exit 1; }
	go vet ./...
	GOOS=darwin go vet ./...
	GOOS=windows go vet ./...
	cd controlplane && go vet ./...
	cd internal/bench && go vet ./...
	cd managerkit && go vet ./...
	cd tracing && go vet ./...
	cd internal/grafanatest && go vet ./...
	cd internal/gamedays && go vet ./...
	bin/staticcheck ./...
	cd internal/bench && ../../bin/staticcheck ./...
	cd managerkit && ../bin/staticcheck ./...
	cd tracing && ../bin/staticcheck ./...
	cd internal/gamedays && ../../bin/staticcheck ./...
	bin/golangci-lint run ./...
	cd managerkit && ../bin/golangci-lint run ./...
	cd tracing && ../bin/golangci-lint run ./...
	go mod tidy -diff
	cd controlplane && go mod tidy -diff
	cd internal/bench && go mod tidy -diff
	cd managerkit && go mod tidy -diff
	cd tracing && go mod tidy -diff
	cd internal/findings && go mod tidy -diff
	cd internal/findings/internal/certmanager && go mod tidy -diff && go mod tidy -modfile=former.mod -diff
	cd internal/findings/internal/jobset && go mod tidy -diff && go mod tidy -modfile=next.mod -diff
	cd internal/gamedays && go mod tidy -diff
	cd internal/grafanatest && go mod tidy -diff
	cd internal/tools && go mod tidy -diff
	cd internal/tools/lint && go mod tidy -diff
	examples/tenant/generate.sh -verify
	@.ci/website website
	@.ci/website backup
	@.ci/vulncheck "$(CURDIR)/bin/govulncheck"

.PHONY: generate
generate: ## generate the examples' clients and the golden files of the exported API
	examples/tenant/generate.sh
	go generate ./examples/website/... ./examples/backup/...
	go test ./examples/website/controller ./examples/backup/controller -run '^TestRBAC$$' -update
	go test -run '^TestAPI$$' ./internal/policy -update
	go test ./metrics -run '^(TestAlerts|TestDashboard)$$' -update

.PHONY: zoo
zoo: bin/controlplane ## write docs/zoo.md, the table of the bugs that controllertest finds
	go test ./controllertest/internal/zoo -run '^TestDocs$$' -update

.PHONY: rehearse
rehearse: ## release this commit to a folder and use that release as a new user would, and try the deprecation policy
	@.ci/deprecate
	@.ci/rehearse

HOURS ?=
OBJECTS ?= 2000
SOAK ?= bin/soak-run

.PHONY: soak
soak: bin/controlplane bin/tenant bin/website ## run the examples with OBJECTS (2000) objects under changes and faults for HOURS in all; an interrupted run goes on in the folder SOAK (bin/soak-run)
	@[ -n "$(HOURS)" ] || { echo "make soak: HOURS is not set: write, for example, make soak HOURS=6"; exit 1; }
	@go build -o bin/soak ./examples/internal/soak
	@bin/soak -dir "$(SOAK)" -hours "$(HOURS)" -objects "$(OBJECTS)"

ROW ?=

.PHONY: bench
bench: bin/controlplane ## compare with client-go and controller-runtime, and write internal/bench/RESULTS.md; ROW=queue/ or ROW=queue/cycle selects rows
	cd internal/bench && go run ./cmd/bench -row "$(ROW)"

.PHONY: curves
curves: bin/controlplane ## measure how costs grow, and write internal/bench/RESULTS.md and charts to docs/curves
	cd internal/bench && go run ./cmd/bench -row curves/

.PHONY: rest
rest: bin/controlplane ## measure processes with 50,000 objects that do not change, for a minute each, and write internal/bench/RESULTS.md
	cd internal/bench && go run ./cmd/bench -row rest/

.PHONY: clean
clean: ## remove bin
	rm -rf bin

# These targets always run, because Go's build cache knows which files are stale.
.PHONY: bin/flakes bin/controlplane bin/prometheus bin/promtool bin/tenant bin/website bin/staticcheck bin/golangci-lint bin/govulncheck
bin/controlplane: # compiles Kubernetes the first time, unless CONTROLPLANE is the path of the program
	@if [ -z "$$CONTROLPLANE" ]; then .ci/progress controlplane $@ "etcd and kube-apiserver" "some minutes" .; \
	elif ! [ "$$CONTROLPLANE" -ef $@ ]; then mkdir -p bin && cp "$$CONTROLPLANE" $@; fi
bin/prometheus bin/promtool: # without most ways to discover targets
	@.ci/progress internal/tools/prometheus $@ $(@F) "some minutes" -tags=remove_all_sd github.com/prometheus/prometheus/cmd/$(@F)
bin/flakes:
	@go build -o $@ ./internal/flakes
bin/tenant: # without the revision, so that an interrupted soak goes on after a commit
	@go build -buildvcs=false -o bin/tenant ./examples/tenant
bin/website:
	@go build -buildvcs=false -o bin/website ./examples/website
bin/staticcheck:
	@go build -C internal/tools -o ../../bin/ honnef.co/go/tools/cmd/staticcheck
bin/govulncheck:
	@go build -C internal/tools -o ../../bin/ golang.org/x/vuln/cmd/govulncheck
bin/golangci-lint:
	@go build -C internal/tools/lint -o ../../../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
