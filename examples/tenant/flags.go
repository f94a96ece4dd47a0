package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/examples/tenant/billing"
)

type options struct {
	kubeconfig     string
	billingURL     string
	workers        int
	selector       labels.Selector // nil selects all
	listen         string
	leaderElect    bool
	shards         int
	leaseNamespace string
	leaseDuration  time.Duration
	renewDeadline  time.Duration
	retryPeriod    time.Duration
	preview        string // "true" or "json"; "" means none
}

// parseOrExit parses the flags. If they are invalid, it prints one line and exits
// with code 2. After -help it exits with code 0.
func parseOrExit(args []string) options {
	o, usage, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprint(os.Stdout, usage)
		os.Exit(0)
	case err != nil:
		fmt.Fprintln(os.Stderr, "tenant:", err)
		os.Exit(2)
	}
	return o
}

func parse(args []string) (o options, usage string, err error) {
	fs := flag.NewFlagSet("tenant", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // otherwise Parse prints the error and all flags
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials; empty means the credentials of the Pod")
	fs.StringVar(&o.billingURL, "billing-url", "", "`URL` of the billing service; empty serves a built-in one under /billing/ of -listen, which keeps its accounts in memory")
	fs.IntVar(&o.workers, "workers", 4, "maximum number of concurrent reconciles")
	fs.Func("selector", "label `selector` of the tenants to reconcile, for example shard=a; empty means all; with -leader-elect, each selector needs its own -leader-election-namespace", func(s string) (err error) {
		o.selector, err = labels.Parse(s)
		return err
	})
	fs.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` of /metrics, /readyz and /livez")
	fs.BoolVar(&o.leaderElect, "leader-elect", false, "reconcile only while holding the Lease tenant-controller")
	fs.IntVar(&o.shards, "shards", 0, "`number` of shards that all replicas divide, in place of -leader-elect and -selector; 0 means none")
	fs.StringVar(&o.leaseNamespace, "leader-election-namespace", "", "`namespace` of the Lease, or of the Leases of -shards")
	fs.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long other candidates wait after the last renewal of the Lease; whole seconds")
	fs.DurationVar(&o.renewDeadline, "renew-deadline", 10*time.Second, "how long a leader that cannot renew its Lease keeps leading")
	fs.DurationVar(&o.retryPeriod, "retry-period", 2*time.Second, "time between two renewals of the Lease")
	fs.BoolFunc("preview", "print what this version would change, with =json for programs, and exit with 0 for nothing, 1 for an error, and 2 for changes", func(form string) error {
		o.preview = form
		return nil
	})
	var verbosity klog.Level
	fs.Var(&verbosity, "v", "log `level`: 2 logs decisions, 4 logs each reconcile")
	if err := fs.Parse(args); err != nil {
		var text strings.Builder
		fs.SetOutput(&text)
		fs.PrintDefaults()
		return o, "Flags of tenant:\n" + text.String(), err
	}
	if fs.NArg() > 0 {
		return o, "", fmt.Errorf("unexpected argument %q: use flags only", fs.Arg(0))
	}
	return o, "", o.check()
}

// check rejects invalid combinations of flags. Its errors name the flags.
func (o options) check() error {
	_, port, err := net.SplitHostPort(o.listen)
	switch {
	case err != nil:
		return fmt.Errorf("-listen %q is not valid: use host:port, for example 127.0.0.1:8080", o.listen)
	case o.billingURL == "" && port == "0":
		return fmt.Errorf("-listen %q has no fixed port for the built-in billing service: choose a port or set -billing-url", o.listen)
	case o.billingURL != "" && billing.Check(o.billingURL) != nil:
		return errors.New("-billing-url is not valid: use https://host:port")
	case o.billingURL != "" && billing.CheckRemote(o.billingURL) != nil:
		return errors.New("-billing-url is plain HTTP to another host: use https://host:port")
	case o.workers < 1:
		return fmt.Errorf("-workers %d is not valid: use at least 1", o.workers)
	case o.shards < 0:
		return fmt.Errorf("-shards %d is not valid: use 0 or more", o.shards)
	case o.preview != "" && o.preview != "true" && o.preview != "json":
		return fmt.Errorf("-preview=%s is not valid: use -preview or -preview=json", o.preview)
	case o.preview != "" && o.shards > 0:
		return errors.New("-preview excludes -shards: leave one of them out")
	case o.shards > 0 && (o.leaderElect || o.selector != nil):
		return errors.New("-shards excludes -leader-elect and -selector: set one of them")
	case !o.leaderElect && o.shards == 0 && o.leaseNamespace != "":
		return errors.New("-leader-election-namespace has no effect without -leader-elect or -shards: set both or neither")
	case !o.leaderElect && o.shards == 0:
		return nil
	case len(validation.IsDNS1123Label(o.leaseNamespace)) > 0:
		return fmt.Errorf("-leader-election-namespace %q is not the name of a namespace: -leader-elect and -shards need one", o.leaseNamespace)
	case o.leaseDuration < time.Second || o.leaseDuration%time.Second != 0:
		return fmt.Errorf("-lease-duration %v is not valid: use whole seconds, at least 1s", o.leaseDuration)
	case o.leaseDuration <= o.renewDeadline:
		return fmt.Errorf("-lease-duration %v is too short: use more than -renew-deadline, which is %v", o.leaseDuration, o.renewDeadline)
	case o.retryPeriod <= 0:
		return fmt.Errorf("-retry-period %v is not valid: use more than 0", o.retryPeriod)
	case o.renewDeadline <= o.retryPeriod+o.retryPeriod/5:
		return fmt.Errorf("-renew-deadline %v is too short: use more than 1.2 times -retry-period, which is %v", o.renewDeadline, o.retryPeriod)
	}
	return nil
}

// billing returns the client of the billing service. Without -billing-url, mux
// serves a built-in service.
func (o options) billing(ctx context.Context, mux *http.ServeMux) *billing.Client {
	if o.billingURL != "" {
		return &billing.Client{URL: o.billingURL}
	}
	client := &billing.Client{URL: "http://" + o.listen + "/billing"}
	mux.Handle("/billing/", http.StripPrefix("/billing", new(billing.Server)))
	klog.FromContext(ctx).Info("Serving a built-in billing service, which loses its accounts when this process ends", "url", client.URL)
	return client
}
