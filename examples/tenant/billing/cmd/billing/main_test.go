package main

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The service is reachable for other hosts only by TLS.
func TestNewServer(t *testing.T) {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS() // has a certificate
	defer certified.Close()
	pair := certified.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, kind string, content []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := file("cert", "CERTIFICATE", pair.Certificate[0]), file("key", "PRIVATE KEY", der)
	for _, tt := range []struct {
		listen, cert, key string
		tls               bool
		want              string // a part of the error; "" means none
	}{
		{listen: "127.0.0.1:8090"},
		{listen: "localhost:8090"},
		{listen: "[::1]:8090"},
		{listen: ":8443", want: "is not a loopback address"},
		{listen: "0.0.0.0:8443", want: "is not a loopback address"},
		{listen: ":8443", cert: cert, key: key, tls: true},
		{listen: ":8443", cert: cert, want: "set both or neither"},
		{listen: ":8443", cert: cert, key: cert, want: "-cert and -key"},
	} {
		s, err := newServer(tt.listen, tt.cert, tt.key)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v", tt, err)
		}
		if err == nil && (s.TLSConfig != nil) != tt.tls {
			t.Errorf("%+v: TLS %v", tt, s.TLSConfig)
		}
	}
}
