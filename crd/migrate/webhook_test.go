package migrate_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// A webhook is a conversion webhook. v1 has the field spec.new in place of spec.old. A field that
// the other version lacks, which is spec.gone or spec.fresh, is in an annotation there.
type webhook struct {
	t           testing.TB
	certificate tls.Certificate
	address     string
	server      *http.Server // nil while the connection is refused

	mu      sync.Mutex
	respond func(desired string, objects []any) (status int, converted []any, message string) // replaces the conversion, if it is not nil
}

// only has the fields that no other version has.
func only(version string) string {
	return map[string]string{"v1alpha1": "gone", "v1": "fresh"}[version]
}

// renamed has the names of the field that the versions name in different ways.
func renamed(version string) string {
	return map[string]string{"v1alpha1": "old", "v1": "new"}[version]
}

// convert returns the object in a version.
func convert(desired string, object any) any {
	obj := &unstructured.Unstructured{Object: object.(m)}
	from := obj.GroupVersionKind()
	obj.SetAPIVersion(desired)
	to := obj.GroupVersionKind().Version
	spec, ok := obj.Object["spec"].(m)
	if !ok {
		return obj.Object
	}
	move := func(a, b string) {
		if value, ok := spec[a]; ok && b != "" {
			spec[b] = value
			delete(spec, a)
		}
	}
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	const prefix = "migrate.example.com/"
	// The version gate has the names and the annotations of v1.
	if from.Version == "gate" {
		from.Version = "v1"
	}
	if to == "gate" {
		to = "v1"
	}
	if from.Version == to {
		return obj.Object
	}
	move(renamed(from.Version), renamed(to))
	if value, ok := spec[only(from.Version)].(string); ok {
		annotations[prefix+only(from.Version)] = value
		delete(spec, only(from.Version))
	}
	if value, ok := annotations[prefix+only(to)]; ok {
		spec[only(to)] = value
		delete(annotations, prefix+only(to))
	}
	obj.SetAnnotations(annotations)
	if len(annotations) == 0 {
		obj.SetAnnotations(nil)
	}
	return obj.Object
}

func (w *webhook) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var review struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Request    struct {
			UID     string `json:"uid"`
			Desired string `json:"desiredAPIVersion"`
			Objects []any  `json:"objects"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		w.t.Logf("the API server, or the end of the webhook, closed the connection: %v", err)
		return
	}
	w.mu.Lock()
	respond := w.respond
	w.mu.Unlock()
	status, message := http.StatusOK, ""
	var converted []any
	if respond != nil {
		status, converted, message = respond(review.Request.Desired, review.Request.Objects)
	} else {
		for _, object := range review.Request.Objects {
			converted = append(converted, convert(review.Request.Desired, object))
		}
	}
	if status != http.StatusOK {
		http.Error(rw, "out of order", status)
		return
	}
	result := m{"status": "Success"}
	if message != "" {
		result = m{"status": "Failure", "message": message}
	}
	rw.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(rw).Encode(m{"apiVersion": review.APIVersion, "kind": review.Kind, "response": m{
		"uid": review.Request.UID, "result": result, "convertedObjects": converted,
	}}); err != nil {
		w.t.Logf("the API server, or the end of the webhook, closed the connection: %v", err)
	}
}

// set replaces the conversion. Nil restores it.
func (w *webhook) set(respond func(desired string, objects []any) (status int, converted []any, message string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.respond = respond
}

// respondWith lets the webhook respond with a status.
func (w *webhook) respondWith(status int) {
	w.set(func(string, []any) (int, []any, string) { return status, nil, "" })
}

func (w *webhook) unavailable() { w.respondWith(http.StatusServiceUnavailable) }

// up ends an outage.
func (w *webhook) up() {
	w.t.Helper()
	w.set(nil)
	if w.server == nil {
		w.listen()
	}
}

// listen starts the server, on the same address as before.
func (w *webhook) listen() {
	w.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.address = listener.Addr().String()
	server := &http.Server{Handler: w, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{Certificates: []tls.Certificate{w.certificate}, MinVersion: tls.VersionTLS12}}
	w.server = server
	go func() { _ = server.ServeTLS(listener, "", "") }()
}

// refuse closes all connections, and refuses others.
func (w *webhook) refuse() {
	if w.server != nil {
		_ = w.server.Close()
		w.server = nil
	}
}

// newWebhook starts a webhook, and returns it with its certificate authority.
func newWebhook(t testing.TB) (w *webhook, authority []byte) {
	t.Helper()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "migrate"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "webhook"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	caData, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	data, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	w = &webhook{t: t, certificate: tls.Certificate{Certificate: [][]byte{data}, PrivateKey: key}, address: "127.0.0.1:0"}
	w.listen()
	t.Cleanup(w.refuse)
	return w, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caData})
}

// installConverted installs a kind with a conversion webhook.
func installConverted(t testing.TB) (*kind, *webhook) {
	t.Helper()
	config := testserver.Config(t)
	w, authority := newWebhook(t)
	k := installAs(t, config, testserver.Namespace(t), func(d m) {
		for _, field := range []string{"new", "fresh"} {
			properties(d, "v1")["properties"].(m)[field] = m{"type": "string"}
		}
		d["spec"].(m)["conversion"] = m{"strategy": "Webhook", "webhook": m{
			"conversionReviewVersions": []any{"v1"}, "clientConfig": m{"url": "https://" + w.address + "/convert", "caBundle": authority},
		}}
	}, "old", "gone")
	t.Cleanup(func() { // so that the objects can be deleted without the webhook
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own has ended
		defer cancel()
		none := []byte(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`)
		if _, err := k.client.Resource(definitions()).Patch(ctx, k.name, types.MergePatchType, none, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	})
	return k, w
}
