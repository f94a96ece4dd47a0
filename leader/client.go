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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// userAgentSuffix tells the requests of the election from the application's, by
// the name that Kubernetes' own components give theirs.
const userAgentSuffix = "/leader-election"

// NewClient returns a client for the Leases of a namespace that shares nothing
// with the application's clients of the same configuration. Neither a rate
// limiter that the application keeps busy nor a connection that died without a
// word then costs the Lease. Give it to an [Elector] and to nothing else, and
// make one for each process. It is safe for concurrent use.
//
// The configuration is copied and not modified. The copy keeps the server, the
// credentials, the impersonation, Dial, Proxy and WrapTransport, and differs in
// this:
//
//   - No rate limiter: QPS, Burst and RateLimiter of config are not used, and the
//     copy has a QPS of -1. An Elector makes one call at a time, RetryPeriod apart
//     as long as they succeed. The application's own clients may do without a
//     limiter too: set QPS to -1, because 0 stands for client-go's default of 5
//     requests a second, and the API server's priority and fairness protects itself.
//   - Connections of its own, over a Dial of its own: client-go shares
//     connections between equal configurations without one.
//   - HTTP/1.1, whatever NextProtos says. A call that runs out of time there
//     closes its connection, and the next one dials. HTTP/2 would keep all calls
//     on the dead connection until its health check gives up, which is 45s in
//     client-go and more than a RenewDeadline. The price is two connections, one
//     for the watch and one for the calls.
//   - No Timeout: it would cut the watch, and an Elector bounds its calls.
//   - The user agent ends in /leader-election.
//
// What cannot be separated stays shared. A configuration with a Transport keeps
// it, with its connections and its protocol, so only the rate limiter is the
// client's own. What WrapTransport puts around the connections may wait on
// something shared, and so may a credential plugin: one process runs it once for
// all its clients.
//
// A nil config, one without Host, an empty namespace and what client-go refuses
// are errors.
func NewClient(config *rest.Config, namespace string) (LeaseClient, error) {
	switch {
	case config == nil:
		return nil, errors.New("leader: config is nil: pass the one of the cluster, such as that of rest.InClusterConfig")
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
	// client-go's typed client would bring the types of every API group along.
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("leader: register the types of the Lease: %w", err)
	}
	own.APIPath, own.GroupVersion = "/apis", &coordinationv1.SchemeGroupVersion
	own.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("leader: make the client of the Lease: %w", err)
	}
	return gentype.NewClient("leases", client, runtime.NewParameterCodec(scheme), namespace,
		func() *coordinationv1.Lease { return &coordinationv1.Lease{} },
		gentype.PrefersProtobuf[*coordinationv1.Lease]()), nil
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// ownDial is a function that is not the one given, and does the same; nil means
// as client-go does.
func ownDial(dial dialFunc) dialFunc {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return dial(ctx, network, address)
	}
}

// A redialer drops the idle connections when a request gets no answer. What
// killed its connection may have killed them too, and before RenewDeadline there
// is no time to find that out one by one.
type redialer struct{ rt http.RoundTripper }

func (r redialer) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.rt.RoundTrip(request)
	if err != nil {
		utilnet.CloseIdleConnectionsFor(r.rt)
	}
	return response, err
}

// WrappedRoundTripper lets client-go's utilities look beneath.
func (r redialer) WrappedRoundTripper() http.RoundTripper { return r.rt }
