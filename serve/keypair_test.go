package serve_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/serve"
)

// secret is a mounted Secret, as the kubelet writes it: the files are links through a link
// that is replaced.
type secret struct {
	t       *testing.T
	dir     string
	version int
}

func newSecret(t *testing.T) *secret {
	s := &secret{t: t, dir: t.TempDir()}
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *secret) pair() *serve.KeyPair {
	return &serve.KeyPair{Cert: filepath.Join(s.dir, "tls.crt"), Key: filepath.Join(s.dir, "tls.key")}
}

func (s *secret) write(cert, key []byte) {
	s.t.Helper()
	s.version++
	version := filepath.Join(s.dir, "..", filepath.Base(s.dir)+"-"+string(rune('a'+s.version)))
	for _, err := range []error{
		os.Mkdir(version, 0o755),
		os.WriteFile(filepath.Join(version, "tls.crt"), cert, 0o600),
		os.WriteFile(filepath.Join(version, "tls.key"), key, 0o600),
		os.Symlink(version, filepath.Join(s.dir, "..new")),
		os.Rename(filepath.Join(s.dir, "..new"), filepath.Join(s.dir, "..data")),
	} {
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestRotation does TLS handshakes while the files change. It proves SV6.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecret(t)
		far := time.Now().Add(24 * time.Hour)
		cert1, key1 := newPair(t, "one", far)
		cert2, key2 := newPair(t, "two", far)
		cert3, key3 := newPair(t, "three", far)
		s.write(cert1, key1)
		pair := s.pair()
		server, err := serve.New(serve.Config{Handler: http.HandlerFunc(served), KeyPair: pair})
		if err != nil {
			t.Fatal(err)
		}
		logs := testlog.New()
		server.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return logs.Context(ctx) }
		p := inMemory(t, server)
		name := func() string {
			t.Helper()
			conn := tls.Client(p.Dial(t), &tls.Config{InsecureSkipVerify: true})
			defer conn.Close()
			if err := conn.HandshakeContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
		}
		const kept = "The last good key pair stays in use"
		for _, step := range []struct {
			what   string
			change func()
			want   string
			check  string // in the error of Check; "" means nil
			lines  int    // of the log, in all
		}{
			{"start", func() {}, "one", "", 0},
			{"renewed", func() { s.write(cert2, key2) }, "two", "", 0},
			{"cut certificate", func() { s.write(cert1[:40], key1) }, "two", "failed to find any PEM data", 1},
			{"the same", func() {}, "two", "failed to find any PEM data", 1},
			{"key of another", func() { s.write(cert3, key1) }, "two", "private key does not match public key", 2},
			{"empty", func() { s.write(nil, nil) }, "two", "PEM", 3},
			{"renewed again", func() { s.write(cert3, key3) }, "three", "", 3},
			{"gone", func() { os.Remove(filepath.Join(s.dir, "..data")) }, "three", "no such file", 4},
			{"back", func() { s.write(cert3, key3) }, "three", "", 4},
			{"gone again", func() { os.Remove(filepath.Join(s.dir, "..data")) }, "three", "no such file", 5},
			{"older pair", func() { s.write(cert1, key1) }, "one", "", 5},
		} {
			step.change()
			time.Sleep(10 * time.Second)
			for range 2 {
				if got := name(); got != step.want {
					t.Errorf("%s: the server uses certificate %q, want %q", step.what, got, step.want)
				}
			}
			err := pair.Check()
			if (err == nil) != (step.check == "") || err != nil && (!strings.Contains(err.Error(), step.check) || !strings.Contains(err.Error(), "tls.crt")) {
				t.Errorf("%s: Check() = %v, want %q and the file", step.what, err, step.check)
			}
			if n := len(logs.Find(kept)); n != step.lines {
				t.Errorf("%s: %d lines report a pair that is not used, want %d", step.what, n, step.lines)
			}
		}
		s.write(cert2, key2)
		if got := name(); got != "one" {
			t.Errorf("the server uses certificate %q, want the one that it read less than 10s ago", got)
		}
		for _, line := range logs.All() {
			if text := line.Message + line.Err.Error(); strings.Contains(text, "PRIVATE KEY") || strings.Contains(text, "-----") {
				t.Errorf("the log has a part of the files: %s", text)
			}
		}
	})
}

// A pair that was never good is an error of New and of handshakes. An expired one serves,
// and Check reports it. It proves SV6.
func TestFirstPair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecret(t)
		pair := s.pair()
		if _, err := serve.New(serve.Config{Handler: http.HandlerFunc(served), KeyPair: pair}); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("New() = %v without files, want an error that names them", err)
		}
		if cert, err := pair.GetCertificate(&tls.ClientHelloInfo{}); cert != nil || err == nil {
			t.Errorf("GetCertificate() = %v, %v without files, want an error", cert, err)
		}
		s.write(newPair(t, "old", time.Now().Add(time.Minute)))
		time.Sleep(10 * time.Second)
		if err := pair.Check(); err != nil {
			t.Errorf("Check() = %v, want nil", err)
		}
		time.Sleep(time.Minute)
		if err := pair.Check(); err == nil || !strings.Contains(err.Error(), "expired at 2000-01-01 00:01:00") {
			t.Errorf("Check() = %v, want that the certificate has expired", err)
		}
		cert, err := pair.GetCertificate(nil)
		if err != nil || cert.Leaf.Subject.CommonName != "old" {
			t.Errorf("GetCertificate() = %v, %v, want the expired one", cert, err)
		}
	})
}
