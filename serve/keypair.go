package serve

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// KeyPair is the certificate chain and the private key of a server, in two files, such as
// the files of a mounted Secret. A handshake reads the files if they were last read more
// than 10s ago; there is no goroutine. A pair that cannot be used does not replace the
// last good one. A KeyPair must not be copied.
type KeyPair struct {
	Cert string // path of the certificates in PEM, the server's first. Required.
	Key  string // path of the private key in PEM. Required.

	mu     sync.Mutex // guards the fields below
	read   time.Time
	cert   *tls.Certificate // the last good one
	err    error            // of the files, when they were read
	logged string           // the text of the last logged error
}

// GetCertificate returns the last good certificate. It is the field of that name in a
// tls.Config. It fails only if there was never a good one.
func (k *KeyPair) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	if k.cert == nil {
		return nil, k.err
	}
	if k.err != nil && k.err.Error() != k.logged {
		ctx := context.Background()
		if hello != nil {
			ctx = hello.Context()
		}
		klog.FromContext(ctx).Error(kube.PrintableError(k.err, maxText), "The last good key pair stays in use", "expires", k.cert.Leaf.NotAfter)
		k.logged = k.err.Error()
	}
	return k.cert, nil
}

// Check returns an error if the files cannot be used, or if the certificate in use has
// expired. The error names the file. A metric or an alert may report it. As a check of
// readiness it would stop a process that still serves.
func (k *KeyPair) Check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	if k.err == nil && time.Now().After(k.cert.Leaf.NotAfter) {
		return fmt.Errorf("serve: the certificate of KeyPair.Cert %q expired at %v: renew it", k.Cert, k.cert.Leaf.NotAfter.UTC())
	}
	return k.err
}

// refreshLocked reads the files if they were not read lately.
func (k *KeyPair) refreshLocked() {
	if now := time.Now(); k.read.IsZero() || now.Sub(k.read) >= 10*time.Second {
		k.read = now
		cert, err := tls.LoadX509KeyPair(k.Cert, k.Key)
		if err != nil { // perhaps one file was old and the other new
			cert, err = tls.LoadX509KeyPair(k.Cert, k.Key)
		}
		if err != nil {
			k.err = fmt.Errorf("serve: KeyPair.Cert %q and KeyPair.Key %q are not a pair of files in PEM: %w", k.Cert, k.Key, err)
			return
		}
		k.cert, k.err, k.logged = &cert, nil, ""
	}
}
