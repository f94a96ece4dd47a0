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
	selector       labels.Selector // nil means all
	listen         string
	leaderElect    bool
	leaseNamespace string
	leaseDuration  time.Duration
	renewDeadline  time.Duration
	retryPeriod    time.Duration
}

// parseOrExit ends the process with code 2 and one line when the flags make no
// sense, and with 0 after -help.
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
	fs.SetOutput(io.Discard) // or flag prints the error and all flags by itself
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server; empty: as a Pod of the cluster")
	fs.StringVar(&o.billingURL, "billing-url", "", "`URL` of the billing service; empty: one in memory, to try out, under /billing/ of -listen")
	fs.IntVar(&o.workers, "workers", 4, "how many tenants may be reconciled at once")
	fs.Func("selector", "`labels` of the tenants to serve, such as shard=a: several instances can share them; with -leader-elect each share needs a namespace of its own for its Lease; empty: all", func(s string) (err error) {
		o.selector, err = labels.Parse(s)
		return err
	})
	fs.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` that serves /metrics, /readyz and /livez")
	fs.BoolVar(&o.leaderElect, "leader-elect", false, "work only while holding the Lease tenant-controller")
	fs.StringVar(&o.leaseNamespace, "leader-election-namespace", "", "`namespace` of the Lease")
	fs.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long others wait for a leader that is not heard of; whole seconds")
	fs.DurationVar(&o.renewDeadline, "renew-deadline", 10*time.Second, "how long a leader that cannot renew its Lease goes on")
	fs.DurationVar(&o.retryPeriod, "retry-period", 2*time.Second, "time from one renewal to the next")
	var verbosity klog.Level
	fs.Var(&verbosity, "v", "`level` of the log: 2 shows decisions, 4 every reconcile")
	if err := fs.Parse(args); err != nil {
		var text strings.Builder
		fs.SetOutput(&text)
		fs.PrintDefaults()
		return o, "Flags of tenant:\n" + text.String(), err
	}
	if fs.NArg() > 0 {
		return o, "", fmt.Errorf("unexpected argument %q: there are only flags", fs.Arg(0))
	}
	return o, "", o.check()
}

// check refuses what could not work, in the words of the flags.
func (o options) check() error {
	_, port, err := net.SplitHostPort(o.listen)
	switch {
	case err != nil:
		return fmt.Errorf("-listen %q: write host:port, such as 127.0.0.1:8080", o.listen)
	case o.billingURL == "" && port == "0":
		return fmt.Errorf("-listen %q: the billing service in memory needs a port that is known: name one, or set -billing-url", o.listen)
	case o.billingURL != "" && billing.Check(o.billingURL) != nil:
		return errors.New("-billing-url: write http://host:port")
	case o.workers < 1:
		return fmt.Errorf("-workers %d: at least 1", o.workers)
	case !o.leaderElect && o.leaseNamespace != "":
		return errors.New("-leader-election-namespace has no effect without -leader-elect")
	case !o.leaderElect:
		return nil
	case len(validation.IsDNS1123Label(o.leaseNamespace)) > 0:
		return fmt.Errorf("-leader-election-namespace %q: -leader-elect needs the name of a namespace", o.leaseNamespace)
	case o.leaseDuration < time.Second || o.leaseDuration%time.Second != 0:
		return fmt.Errorf("-lease-duration %v: a whole number of seconds, at least 1s", o.leaseDuration)
	case o.leaseDuration <= o.renewDeadline:
		return fmt.Errorf("-lease-duration %v: more than -renew-deadline, which is %v", o.leaseDuration, o.renewDeadline)
	case o.retryPeriod <= 0:
		return fmt.Errorf("-retry-period %v: more than 0", o.retryPeriod)
	case o.renewDeadline <= o.retryPeriod+o.retryPeriod/5:
		return fmt.Errorf("-renew-deadline %v: more than 1.2 times -retry-period, which is %v", o.renewDeadline, o.retryPeriod)
	}
	return nil
}

// billing is the client of the billing service. Where none is named, one is
// made and served by mux.
func (o options) billing(ctx context.Context, mux *http.ServeMux) *billing.Client {
	if o.billingURL != "" {
		return &billing.Client{URL: o.billingURL}
	}
	client := &billing.Client{URL: "http://" + o.listen + "/billing"}
	mux.Handle("/billing/", http.StripPrefix("/billing", new(billing.Server)))
	klog.FromContext(ctx).Info("Trying out: accounts are kept in memory and are lost when this process ends", "url", client.URL)
	return client
}
