package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// runMain makes the test binary run main, so that the tests see its exit codes.
const runMain = "TENANT_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestFlags(t *testing.T) {
	tests := []struct {
		name string
		args string
		code int
		want string // a part of the only line on stderr; "" means that stderr is empty
	}{
		{name: "help", args: "-help", code: 0},
		{name: "unknown flag", args: "-wrokers=3", code: 2, want: "-wrokers"},
		{name: "argument", args: "start", code: 2, want: `unexpected argument "start"`},
		{name: "workers not a number", args: "-workers=many", code: 2, want: "-workers"},
		{name: "no workers", args: "-workers=0", code: 2, want: "-workers 0 is not valid"},
		{name: "negative workers", args: "-workers=-1", code: 2, want: "-workers -1 is not valid"},
		{name: "invalid selector", args: "-selector=a==b==c", code: 2, want: "-selector"},
		{name: "billing without scheme", args: "-billing-url=billing:8090", code: 2, want: "-billing-url is not valid: use https://"},
		{name: "billing in another scheme", args: "-billing-url=ftp://billing", code: 2, want: "-billing-url is not valid: use https://"},
		{name: "billing without TLS", args: "-billing-url=http://billing.tenant-system.svc:8090", code: 2, want: "plain HTTP to another host"},
		{name: "listen without port", args: "-listen=localhost", code: 2, want: "use host:port"},
		{name: "billing on an unknown port", args: "-listen=127.0.0.1:0", code: 2, want: "no fixed port"},
		{name: "lease duration without a unit", args: "-lease-duration=15", code: 2, want: "-lease-duration"},
		{name: "namespace without election", args: "-leader-election-namespace=x", code: 2, want: "without -leader-elect"},
		{name: "election without namespace", args: "-leader-elect", code: 2, want: "is not the name of a namespace"},
		{name: "not a namespace", args: "-leader-elect -leader-election-namespace=A_B", code: 2, want: "is not the name of a namespace"},
		{name: "negative shards", args: "-shards=-1", code: 2, want: "-shards -1 is not valid"},
		{name: "shards with election", args: "-shards=8 -leader-elect -leader-election-namespace=x", code: 2, want: "-shards excludes"},
		{name: "shards with selector", args: "-shards=8 -selector=a=b -leader-election-namespace=x", code: 2, want: "-shards excludes"},
		{name: "shards without namespace", args: "-shards=8", code: 2, want: "is not the name of a namespace"},
		{name: "half a second", args: "-leader-elect -leader-election-namespace=x -lease-duration=1500ms", code: 2, want: "use whole seconds"},
		{name: "lease duration of zero", args: "-leader-elect -leader-election-namespace=x -lease-duration=0s", code: 2, want: "at least 1s"},
		{name: "lease too short", args: "-leader-elect -leader-election-namespace=x -lease-duration=10s", code: 2, want: "use more than -renew-deadline"},
		{name: "retry period too long", args: "-leader-elect -leader-election-namespace=x -retry-period=9s", code: 2, want: "use more than 1.2 times -retry-period"},
		{name: "retry period of zero", args: "-leader-elect -leader-election-namespace=x -retry-period=0s", code: 2, want: "-retry-period 0s is not valid"},
		{name: "a kubeconfig that does not exist", args: "-kubeconfig=/does/not/exist", code: 1, want: "/does/not/exist"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], strings.Fields(tt.args)...)
			cmd.Env = append(os.Environ(), runMain+"=1")
			var stderr strings.Builder
			cmd.Stderr = &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != tt.code {
				t.Errorf("got exit code %d, want %d; stderr: %s", got, tt.code, stderr.String())
			}
			switch line := stderr.String(); {
			case tt.want == "" && line != "":
				t.Errorf("got %q on stderr, want it empty", line)
			case tt.want != "" && (!strings.Contains(line, tt.want) || strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "tenant: ")):
				t.Errorf("got %q on stderr, want one line from tenant with %q", line, tt.want)
			}
		})
	}
}
