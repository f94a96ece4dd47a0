# make demo and make test are the two commands of the README; make help lists all.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# Build without stamping the commit, so that a commit alone rebuilds nothing.
export GOFLAGS += -buildvcs=false

TEST_FLAGS ?=
PACKAGES ?= ./...

.PHONY: help
help: ## this list
	@grep -hE '^[a-z/]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: demo
demo: bin/controlplane bin/tenant ## run the tenant controller on a real API server and show what happens; CI=1 asserts it
	@go run ./examples/tenant/demo -controlplane bin/controlplane -controller bin/tenant

.PHONY: test
test: bin/controlplane ## all tests, the real API server included
	@# Many tests wait for a server or a clock, so more of them run at once than there are cores.
	go test -race -shuffle=on -p 3 -parallel 6 $(TEST_FLAGS) $(PACKAGES)
	cd controlplane && go test $(TEST_FLAGS) ./...
	cd bench && go test $(TEST_FLAGS) ./...

BUDGET ?= 40m
OPERATIONS ?= 100000000
SCHEDULES ?= 2000
HOSTILE ?= 5m

.PHONY: explore
explore: bin/controlplane ## faults at every place, and random ones: BUDGET (40m) for each of the two large scenarios, all single faults for the zoo; the queue under OPERATIONS (10^8), elections under SCHEDULES (2000), each package under hostile objects for HOSTILE (5m)
	go test -race -v -count=1 -timeout 0 -run '^(TestStress|TestLinearizable|TestNoWakeUpIsLost)$$' ./queue -operations $(OPERATIONS)
	go test -v -count=1 -timeout 0 -run '^TestSchedules$$' ./leader -schedules $(SCHEDULES)
	go test -v -count=1 -timeout 0 -run '^TestServerThrottledApplication$$' ./leader -throttled 10m
	go test -race -v -count=1 -timeout 0 -run '^TestServerNoDuplicates$$' ./consistency -creations 10000
	EXPLORE_BUDGET=$(BUDGET) go test -v -count=1 -timeout 0 -p 1 -run '^(TestReference|TestExplore)$$' ./controllertest/internal/zoo ./examples/tenant/integration
	EXPLORE_BUDGET=$(BUDGET) go test -v -count=1 -timeout 0 -run '^TestTwins$$' ./controllertest/internal/zoo
	@for dir in $$(git grep -l 'func FuzzHostile(' -- '*_test.go' | xargs -n 1 dirname); do \
		echo "go test -run '^\$$' -fuzz '^FuzzHostile\$$' -fuzztime $(HOSTILE) ./$$dir"; \
		go test -run '^$$' -fuzz '^FuzzHostile$$' -fuzztime $(HOSTILE) "./$$dir" || exit 1; \
	done

.PHONY: check
check: bin/staticcheck bin/golangci-lint bin/govulncheck ## formatting, vet (also for darwin and windows), linters, generated code, tidiness
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "gofmt these"; exit 1; }
	go vet ./...
	GOOS=darwin go vet ./...
	GOOS=windows go vet ./...
	cd controlplane && go vet ./...
	cd bench && go vet ./...
	bin/staticcheck ./...
	cd bench && ../bin/staticcheck ./...
	bin/golangci-lint run ./...
	go mod tidy -diff
	cd controlplane && go mod tidy -diff
	cd bench && go mod tidy -diff
	cd internal/tools && go mod tidy -diff
	cd internal/tools/lint && go mod tidy -diff
	examples/tenant/generate.sh -verify
	@.ci/vulncheck "$(CURDIR)/bin/govulncheck"

.PHONY: generate
generate: ## generated code of the examples, and the golden files of the exported API
	examples/tenant/generate.sh
	go test -run '^TestAPI$$' . -update

.PHONY: zoo
zoo: bin/controlplane ## docs/zoo.md, the table of the bugs that controllertest finds
	go test ./controllertest/internal/zoo -run '^TestDocs$$' -update

.PHONY: rehearse
rehearse: ## release this commit to a folder, and use it from there as a new user would
	@.ci/rehearse

ROW ?=

.PHONY: bench
bench: bin/controlplane ## side by side with client-go and controller-runtime, into bench/RESULTS.md; ROW=queue/ or ROW=queue/cycle runs some
	cd bench && go run ./cmd/bench -row "$(ROW)"

.PHONY: clean
clean: ## remove what was built here
	rm -rf bin

# Go's build cache decides what is stale, so these are made each time.
.PHONY: bin/controlplane bin/tenant bin/staticcheck bin/golangci-lint bin/govulncheck
bin/controlplane: # compiles Kubernetes the first time
	@.ci/progress controlplane bin/controlplane "etcd and kube-apiserver" "some minutes"
bin/tenant:
	@go build -o bin/tenant ./examples/tenant
bin/staticcheck:
	@go build -C internal/tools -o ../../bin/ honnef.co/go/tools/cmd/staticcheck
bin/govulncheck:
	@go build -C internal/tools -o ../../bin/ golang.org/x/vuln/cmd/govulncheck
bin/golangci-lint:
	@go build -C internal/tools/lint -o ../../../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
