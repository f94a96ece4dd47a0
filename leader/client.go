package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/controllerkit/controllerkit/internal/typed"
)

// userAgentSuffix distinguishes the requests of the election. Kubernetes' own
// components use the same name.
const userAgentSuffix = "/leader-election"

// NewClient returns a client for the Leases of a namespace that shares no connection
// and no rate limiter with the application's clients of the same configuration. If the
// application exhausts its limiter, or a connection dies silently, renewals go on, as
// long as new connections work and RetryPeriod is less than half of RenewDeadline. Use
// the client for one [Elector] only, and make one in each process. It is safe for
// concurrent use.
//
// NewClient copies config and does not modify it. The copy keeps the server, the
// credentials, the impersonation, Dial, Proxy and WrapTransport, with these
// differences:
//
//   - No rate limiter: the copy has a QPS of -1, and the Burst and the RateLimiter of
//     config are not used. An Elector makes one call at a time, RetryPeriod apart while
//     they succeed. Set the QPS of the application's own configuration to -1 as well: 0
//     means client-go's default of 5 requests a second, and the API server protects
//     itself by priority and fairness.
//   - Its own connections, over its own Dial: without one client-go shares connections
//     between equal configurations.
//   - HTTP/1.1, also if NextProtos has HTTP/2. A call that times out closes its
//     connection, and the next call dials. HTTP/2 would keep all calls on the dead
//     connection until its health check fails, which takes 45s in client-go, longer
//     than RenewDeadline. The client needs two connections: one for the watch and one
//     for the calls.
//   - No Timeout: it would end the watch, and an Elector bounds its calls.
//   - The user agent ends in /leader-election.
//
// A configuration with a Transport keeps it, with its connections and its protocol:
// only the rate limiter is separate. A WrapTransport may wait on shared state, and so
// may a credential plugin, because a process runs it once for all its clients.
//
// NewClient returns an error if config is nil or has no Host, if namespace is empty, or
// if client-go rejects the configuration.
func NewClient(config *rest.Config, namespace string) (LeaseClient, error) {
	switch {
	case config == nil:
		return nil, errors.New("leader: config is nil: pass the cluster's configuration, e.g. of rest.InClusterConfig")
	case config.Host == "":
		return nil, errors.New("leader: config.Host is empty: set it to the address of the API server")
	case namespace == "":
		return nil, errors.New("leader: namespace is empty: pass the namespace of the Lease")
	}
	own := rest.CopyConfig(config)
	own.RateLimiter, own.QPS, own.Burst = nil, -1, 0
	own.Timeout = 0
	own.UserAgent = cmp.Or(own.UserAgent, rest.DefaultKubernetesUserAgent()) + userAgentSuffix
	if own.Transport == nil {
		own.Dial = ownDial(own.Dial)
		own.NextProtos = []string{"http/1.1"}
		own.WrapTransport = transport.Wrappers(func(rt http.RoundTripper) http.RoundTripper { return redialer{rt} }, own.WrapTransport)
	}
	client, err := typed.New(own, coordinationv1.SchemeGroupVersion, "leases", coordinationv1.AddToScheme, func() *coordinationv1.Lease { return &coordinationv1.Lease{} })
	if err != nil {
		return nil, fmt.Errorf("leader: make the client of the Lease: %w", err)
	}
	return client.In(namespace), nil
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// ownDial returns a new function that calls dial; client-go compares functions by
// pointer. nil means client-go's default.
func ownDial(dial dialFunc) dialFunc {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return dial(ctx, network, address)
	}
}

// A redialer drops the idle connections if a request gets no response. The failure of
// one may be the failure of all, and RenewDeadline leaves no time to try each.
type redialer struct{ rt http.RoundTripper }

func (r redialer) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.rt.RoundTrip(request)
	if err != nil {
		utilnet.CloseIdleConnectionsFor(r.rt)
	}
	return response, err
}

// WrappedRoundTripper returns the inner transport, for client-go's utilities.
func (r redialer) WrappedRoundTripper() http.RoundTripper { return r.rt }
