package serve

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log" //nolint:depguard // http.Server.ErrorLog has its type
	"net"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"time"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Config configures [New].
type Config struct {
	// Addr is the address to listen on, such as ":8443". "" means 127.0.0.1:6060, which
	// only this Pod and kubectl port-forward reach.
	Addr string

	// Handler has the endpoints. Required.
	Handler http.Handler

	// Guard lets requests pass. nil means all requests of this host, and is an error if Addr is
	// not loopback. A request whose Host is not loopback then gets 403.
	Guard *Guard

	// Open are paths whose GET and HEAD need no token, such as /readyz. Without a Guard, no path
	// needs one. nil means none.
	Open []string

	// KeyPair makes the server use TLS. nil means plain HTTP, and is an error if Addr is
	// not loopback and Guard.PlainHTTP is false.
	KeyPair *KeyPair
}

// New returns a server for [shutdown.Server], or an error that names the wrong field. The
// server closes the connection of a client that sends or reads slowly within a minute,
// responds 431 to headers that are too large, and has no HTTP/2. Its fields may be changed
// before it starts: a handler that streams needs another WriteTimeout.
//
// [shutdown.Server]: https://pkg.go.dev/github.com/controllerkit/controllerkit/shutdown#Server
func New(config Config) (*http.Server, error) {
	addr := cmp.Or(config.Addr, "127.0.0.1:6060")
	host, _, err := net.SplitHostPort(addr)
	switch {
	case err != nil:
		return nil, fmt.Errorf("serve: Config.Addr %q is not valid: use host:port, e.g. :8443", addr)
	case kube.IsNil(config.Handler):
		return nil, errors.New("serve: Config.Handler is nil: set the handler of the endpoints")
	case !loopback(host) && config.Guard == nil:
		return nil, fmt.Errorf("serve: other hosts can reach Config.Addr %q: set Config.Guard, or use a loopback address", addr)
	case !loopback(host) && config.KeyPair == nil && !config.Guard.PlainHTTP:
		return nil, fmt.Errorf("serve: other hosts can reach Config.Addr %q: set Config.KeyPair, or Guard.PlainHTTP if a proxy ends TLS", addr)
	}
	open := map[string]bool{}
	for _, p := range config.Open {
		if !strings.HasPrefix(p, "/") || path.Clean(p) != p {
			return nil, fmt.Errorf("serve: Config.Open has %q: use an absolute path without empty or dot parts, e.g. /readyz", p)
		}
		open[p] = true
	}
	handler := local(config.Handler)
	if config.Guard != nil {
		if err := config.Guard.init(); err != nil {
			return nil, err
		}
		handler = config.Guard.Handler(config.Handler)
	}
	server := &http.Server{
		Addr:              addr,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    28 << 10, // net/http adds 4 KiB
		Protocols:         new(http.Protocols),
		// Else net/http answers "OPTIONS *" before the handler, so without the Guard.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(errorLog{flowcontrol.NewTokenBucketPassiveRateLimiter(1, 10)}, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if config.Guard != nil && open[r.URL.Path] && canonical(r) && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
				config.Handler.ServeHTTP(w, withoutToken(r))
				return
			}
			handler.ServeHTTP(w, r)
		}),
	}
	server.Protocols.SetHTTP1(true)
	if config.KeyPair != nil {
		if _, err := config.KeyPair.GetCertificate(nil); err != nil {
			return nil, err
		}
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: config.KeyPair.GetCertificate}
	}
	return server, nil
}

// local passes requests for this host. A page in a browser on this host can send requests
// to it under the page's own name, by a DNS record that changes.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		switch {
		case !canonical(r):
			refuse(w, http.StatusBadRequest)
		case !loopback(strings.Trim(host, "[]")):
			refuse(w, http.StatusForbidden)
		default:
			next.ServeHTTP(w, withoutToken(r))
		}
	})
}

// loopback reports whether only this host reaches the host.
func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

// errorLog logs the lines of net/http. Clients cause most of them, so their number is
// bounded.
type errorLog struct {
	limit flowcontrol.PassiveRateLimiter
}

func (l errorLog) Write(line []byte) (int, error) {
	if l.limit.TryAccept() {
		klog.Background().Info("HTTP server", "error", kube.Printable(strings.TrimSpace(string(line)), 8<<10))
	}
	return len(line), nil
}
