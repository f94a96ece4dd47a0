// Package kubeconfig lets a program that takes only a kubeconfig file send its requests through an
// incarnation.
package kubeconfig

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/controllertest/internal/lines"
	"github.com/controllerkit/controllerkit/controllertest/internal/local"
)

// A File is a kubeconfig file, whose server sends the requests through an
// incarnation. The file and the server are made when they are needed.
type File struct {
	Through   *fault.Incarnation
	Namespace string

	mu     sync.Mutex
	closed bool
	dir    string
	server *local.Server
}

// Path returns the path of the file, which the first call writes.
func (k *File) Path() (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return "", errors.New("the run has ended")
	}
	if k.server == nil {
		if err := k.openLocked(); err != nil {
			k.closeLocked()
			return "", err
		}
	}
	return filepath.Join(k.dir, "kubeconfig"), nil
}

func (k *File) openLocked() error {
	cfg := k.Through.Config()
	target, err := url.Parse(cfg.Host)
	if err != nil {
		return err
	}
	transport, err := rest.TransportFor(cfg) // with the credentials
	if err != nil {
		return err
	}
	// The server needs no credentials, so only a reader of the file knows its path.
	secret := "/" + rand.Text()
	mux := http.NewServeMux()
	mux.Handle(secret+"/", http.StripPrefix(secret, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding") // the faults read the bodies
			r.Out.Header["Accept"] = readable(r.Out.Header["Accept"])
		},
		Transport:     transport,
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:      lines.Discard(),
	}))
	if k.server, err = local.Serve(context.Background(), mux); err != nil {
		return err
	}
	if k.dir, err = os.MkdirTemp("", "controllertest-"); err != nil {
		return err
	}
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"": {Server: k.server.URL + secret}},
		Contexts:       map[string]*clientcmdapi.Context{"": {Cluster: "", Namespace: k.Namespace}},
		CurrentContext: "",
	}, filepath.Join(k.dir, "kubeconfig")) // mode 0600
}

// readable returns the values of a header Accept without the encodings that the faults and
// the filter of other runs cannot read, if JSON is left.
func readable(accept []string) []string {
	var text []string
	json := false
	for kind := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		if kind := strings.TrimSpace(kind); !strings.HasPrefix(kind, runtime.ContentTypeProtobuf) && !strings.HasPrefix(kind, runtime.ContentTypeCBOR) {
			text = append(text, kind)
			json = json || strings.HasPrefix(kind, runtime.ContentTypeJSON)
		}
	}
	if !json {
		return accept
	}
	return []string{strings.Join(text, ",")}
}

// Close removes the file and stops the server.
func (k *File) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.closeLocked()
}

func (k *File) closeLocked() {
	if k.server != nil {
		k.server.Close()
		k.server = nil
	}
	if k.dir != "" {
		_ = os.RemoveAll(k.dir)
		k.dir = ""
	}
}
