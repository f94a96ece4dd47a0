package serve_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/testpipe"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/serve"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// create is a client.
type create[T any] func(context.Context, T) (T, error)

func (c create[T]) Create(ctx context.Context, review T, _ metav1.CreateOptions) (T, error) {
	return c(ctx, review)
}

// reviewer is an API server: the token "good-1" is that of user good, for the audience of
// the API server and "metrics". It counts the reviews.
type reviewer struct {
	tokens, accesses atomic.Int64
	before           func(context.Context) error               // is called by each review; nil means none
	status           func(*authenticationv1.TokenReviewStatus) // changes what it says; nil means none
	allow            []string                                  // the paths that user good may get
}

func (r *reviewer) guard() *serve.Guard {
	call := func(ctx context.Context, n *atomic.Int64) error {
		n.Add(1)
		if r.before == nil {
			return nil
		}
		return r.before(ctx)
	}
	return &serve.Guard{
		Tokens: create[*authenticationv1.TokenReview](func(ctx context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
			if err := call(ctx, &r.tokens); err != nil {
				return nil, err
			}
			answer := &authenticationv1.TokenReview{}
			switch review.Spec.Token {
			case "good-1":
				answer.Status = authenticationv1.TokenReviewStatus{
					Authenticated: true, Audiences: review.Spec.Audiences,
					User: authenticationv1.UserInfo{Username: "good", UID: "1", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"e": {"1"}}},
				}
			case "other-1":
				answer.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "other"}}
			default:
				answer.Status.Error = "invalid bearer token"
			}
			if r.status != nil {
				r.status(&answer.Status)
			}
			return answer, nil
		}),
		Access: create[*authorizationv1.SubjectAccessReview](func(ctx context.Context, review *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
			if err := call(ctx, &r.accesses); err != nil {
				return nil, err
			}
			s := review.Spec
			good := s.User == "good" && s.UID == "1" && slices.Equal(s.Groups, []string{"g"}) && slices.Equal(s.Extra["e"], []string{"1"})
			answer := &authorizationv1.SubjectAccessReview{}
			answer.Status.Allowed = good && s.NonResourceAttributes.Verb == "get" && slices.Contains(r.allow, s.NonResourceAttributes.Path)
			return answer, nil
		}),
	}
}

// served responds with the path that a router would serve.
func served(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "served "+r.URL.Path) }

// get sends a request over TLS with the token, which may be "", and returns the code.
func get(t testing.TB, h http.Handler, token, path, addr string) int {
	t.Helper()
	return send(t.Context(), h, token, path, addr).Code
}

func send(ctx context.Context, h http.Handler, token, path, addr string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "https://controller.invalid"+path, nil)
	r.RemoteAddr = addr
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const anAddr = "192.0.2.1:1234"

// newPair returns a certificate of localhost and its key, in PEM.
func newPair(t testing.TB, name string, end time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Unix(0, 0), NotAfter: end,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes})
}

// inMemory serves until the test ends. It needs a bubble of synctest.
func inMemory(t *testing.T, server *http.Server) *testpipe.Listener {
	t.Helper()
	p := testpipe.Listen()
	ended := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			ended <- server.ServeTLS(p, "", "")
		} else {
			ended <- server.Serve(p)
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
		time.Sleep(time.Second) // net/http waits for 500ms after some errors
	})
	return p
}
