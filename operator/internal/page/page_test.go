package page

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/operator/internal/source"
)

// TestMutation: the page has the last mutation of the informer that it concerns.
func TestMutation(t *testing.T) {
	var sources source.Set
	core := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1()
	if _, err := sources.Of(served.Resource{GroupResource: corev1.Resource("configmaps")}, core.ConfigMaps().Informer()); err != nil {
		t.Fatal(err)
	}
	if _, err := sources.Of(served.Resource{GroupResource: corev1.Resource("secrets")}, core.Secrets().Informer()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, i := range list(sources, nil, map[string]informer.Mutation{"secrets": {Name: "secrets", Key: "default/blue", Path: ".data"}}) {
		got[i.Name] = i.Mutated
	}
	if diff := cmp.Diff(map[string]string{"configmaps": "", "secrets": "default/blue .data"}, got); diff != "" {
		t.Errorf("mutations on the page (-want +got):\n%s", diff)
	}
}

// TestServeBusyAddress: while another process has the address, the part does not fail, and logs it once. It
// serves the page as soon as the address is free.
func TestServeBusyAddress(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	synctest.Test(t, func(t *testing.T) {
		address := other.Addr().String()
		server, err := Server(address, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
		if err != nil {
			t.Fatal(err)
		}
		serves := make(chan struct{})
		server.BaseContext = func(net.Listener) context.Context { close(serves); return context.Background() }
		logs := testlog.New()
		ctx, cancel := context.WithCancel(logs.Context(t.Context()))
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- Serve(server)(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("the part ended: %v", err)
		default:
		}
		lines := logs.Find("Cannot serve the debug page, trying again")
		if len(lines) != 1 || lines[0].Err == nil || !strings.Contains(lines[0].Err.Error(), address) {
			t.Errorf("the log has %+v, want one line with the address", lines)
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		<-serves
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Get("http://" + address + "/debug/controllers")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusTeapot {
			t.Errorf("the response is %s", resp.Status)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestServeEnd: the part ends with its context while another process has the address. An address that no
// system can have is an error.
func TestServeEnd(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	synctest.Test(t, func(t *testing.T) {
		for address, fails := range map[string]bool{"127.0.0.1:99999": true, other.Addr().String(): false} {
			server, err := Server(address, http.NotFound)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(testlog.New().Context(t.Context()), time.Minute)
			if err := Serve(server)(ctx); (err != nil) != fails {
				t.Errorf("%s: %v", address, err)
			}
			cancel()
		}
	})
}
