package integration_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/operator"
)

var (
	browser     = flag.String("browser", "", "`program` of TestServerBrowser, such as chromium")
	screenshots = flag.String("screenshots", "", "`folder` for the pictures of TestServerBrowser")
)

// TestServerBrowser looks at the debug page of a running operator with a browser: at rest,
// under load, while the DNS service fails, with a paused object, and after the button that sets the
// verbosity. make browser runs it.
func TestServerBrowser(t *testing.T) {
	if *browser == "" {
		t.Skip("make browser runs this test, with Debian's package chromium")
	}
	w := newWorld(t)
	listen, err := lab.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	var blog atomic.Pointer[string]   // the path of its record, while the service fails
	refused := make(chan struct{}, 1) // has a value when the service refused that record
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		w.dns.ServeHTTP(rw, req)
		if path := blog.Load(); path != nil && *path == req.URL.Path {
			select {
			case refused <- struct{}{}:
			default:
			}
		}
	}))
	defer service.Close()
	records, err := dns.NewClient(service.URL)
	if err != nil {
		t.Fatal(err)
	}
	op, err := controller.New(w.admin, operator.Options{Name: name, LeaseNamespace: systemNamespace, Debug: listen}, records)
	if err != nil {
		t.Fatal(err)
	}
	w.runHere(op)
	w.leader("")
	site := w.create("blog")
	w.awaitReady("blog")

	// The proxy counts the page's loads, and stands for kubectl port-forward.
	target, err := url.Parse("http://" + listen)
	if err != nil {
		t.Fatal(err)
	}
	loads := make(chan struct{}, 1)
	page := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/debug/controllers" {
			select {
			case loads <- struct{}{}:
			default:
			}
		}
		page.ServeHTTP(rw, req)
	}))
	defer server.Close()
	at := server.URL + "/debug/controllers"

	show := func(picture, query string, want ...string) {
		t.Helper()
		text := rendered(t, at+query, picture)
		for _, pattern := range want {
			if !regexp.MustCompile(pattern).MatchString(text) {
				t.Errorf("%s: the page lacks %q:\n%s", picture, pattern, text)
			}
		}
	}
	show("idle", "?reload=off",
		`website-operator`, `(?i)lead`, `websites\.web\.example\.com \d+ [\d.]+ KiB`, `deployments\.apps \d+`,
		`default/blog success`)
	show("story", "?reload=off&key=default/blog", `event`, `call success`, `write`, `deployments\.apps default/blog`)

	for n := range 150 {
		w.create(fmt.Sprintf("load-%d", n))
	}
	show("load", "?reload=off", `websites\.web\.example\.com \d+`, `default/load-\d+`)
	for n := range 150 {
		w.await(func() error { return w.applied(fmt.Sprintf("load-%d", n)) })
	}

	w.dns.Fail(http.StatusServiceUnavailable)
	blog.Store(new("/records/" + string(site.UID)))
	w.edit("blog", `{"spec":{"host":"other.example.com"}}`)
	for range 2 { // the second time, the call of the first one has ended
		select {
		case <-refused:
		case <-time.After(limit):
			t.Fatal("the service is not called")
		}
	}
	show("fault", "?reload=off", `Last calls without success`, `default/blog`)
	show("fault-story", "?reload=off&key=default/blog", `(?i)delayed|wait|fail`)
	w.dns.Fail(0)

	w.edit("load-7", `{"metadata":{"annotations":{"controllerkit.github.io/paused":"incident 42"}}}`)
	w.await(func() error {
		if text := rendered(t, at+"?reload=off", ""); !strings.Contains(text, "Paused objects default/load-7") {
			return errors.New("the page does not list the paused object")
		}
		return nil
	})
	show("paused", "?reload=off&key=default/load-7", `An annotation pauses it`)

	former := debug.Klog(0)
	debug.Klog(former)
	defer debug.Klog(former)
	press(t, at+"?reload=off", "form[method=post] button")
	show("verbose", "?reload=off", `It is 4 until .*, then `+strconv.Itoa(former)+` again`)
	if !klog.V(4).Enabled() {
		t.Error("the verbosity is not raised")
	}

	// Where JavaScript is on, the page loads itself again after 5s.
	select { // the last of the loads above
	case <-loads:
	default:
	}
	loading, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := headless(t, loading, "--remote-debugging-port=0", at)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		select {
		case <-loads:
		case <-loading.Done():
			t.Errorf("the page was loaded %d times in %v, want it to load itself again", n, limit)
		}
	}
	cancel()
	_ = cmd.Wait() // it was killed
}

// applied returns nil if the website's Deployment exists.
func (w *world) applied(site string) error {
	_, err := w.kube.AppsV1().Deployments(namespace).Get(w.t.Context(), site, metav1.GetOptions{})
	return err
}

var tags = regexp.MustCompile(`(?s)<(script|style).*?</(script|style)>|<[^>]*>`)

// rendered returns the text of the page as the browser has it, and takes a picture.
func rendered(t *testing.T, address, picture string) string {
	t.Helper()
	run := func(args ...string) []byte {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cmd := headless(t, ctx, append(args, address)...)
		var problems strings.Builder
		cmd.Stderr = &problems
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", *browser, err, &problems)
		}
		return out
	}
	if *screenshots != "" && picture != "" {
		run("--screenshot=" + filepath.Join(*screenshots, picture+".png"))
	}
	text := tags.ReplaceAllString(string(run("--dump-dom")), " ")
	return strings.Join(strings.Fields(html.UnescapeString(text)), " ")
}

// press opens the page in a browser, clicks on what the selector names, and waits for the page that the click leads
// to. The browser takes commands by a pipe, one JSON object each, that ends with a zero byte.
func press(t *testing.T, address, selector string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := headless(t, ctx, "--remote-debugging-pipe", "about:blank")
	commands, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, responses, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{commands, responses}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
		_ = errors.Join(to.Close(), from.Close())
	}()
	_ = errors.Join(commands.Close(), responses.Close()) // those of the browser
	type m = map[string]any
	type message struct {
		ID            int // 0 for an event
		Method        string
		Result, Error m
	}
	in, session, sent, loaded := bufio.NewReader(from), "", 0, 0
	read := func() (got message) {
		line, err := in.ReadBytes(0)
		if err == nil {
			err = json.Unmarshal(line[:len(line)-1], &got)
		}
		if err == nil && got.Error != nil {
			err = fmt.Errorf("%v", got.Error)
		}
		if err != nil {
			t.Fatalf("%s: %v", *browser, err)
		}
		if got.Method == "Page.loadEventFired" {
			loaded++
		}
		return got
	}
	ask := func(method string, params m) m {
		sent++
		command := m{"id": sent, "method": method, "params": params}
		if session != "" {
			command["sessionId"] = session
		}
		data, err := json.Marshal(command)
		if err == nil {
			_, err = to.Write(append(data, 0))
		}
		if err != nil {
			t.Fatalf("%s: %s: %v", *browser, method, err)
		}
		for {
			if got := read(); got.ID == sent {
				return got.Result
			}
		}
	}
	target := ask("Target.createTarget", m{"url": "about:blank"})["targetId"]
	session, _ = ask("Target.attachToTarget", m{"targetId": target, "flatten": true})["sessionId"].(string)
	ask("Page.enable", m{})
	for n, step := range []func(){
		func() { ask("Page.navigate", m{"url": address}) },
		func() {
			ask("Runtime.evaluate", m{"expression": fmt.Sprintf("document.querySelector(%q).click()", selector)})
		},
	} {
		for step(); loaded <= n; {
			read()
		}
	}
}

// headless returns the command of a browser with a profile of its own and no requests of its
// own.
func headless(t *testing.T, ctx context.Context, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, *browser, append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--window-size=1100,900", "--user-data-dir=" + t.TempDir(),
	}, args...)...)
	cmd.WaitDelay = time.Second
	return cmd
}
