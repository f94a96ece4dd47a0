package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// TestFreeze holds that a frozen incarnation neither sends nor receives.
func TestFreeze(t *testing.T) {
	var thawed atomic.Bool
	inTime := func(t testing.TB, what string) {
		t.Helper()
		if !thawed.Load() {
			t.Errorf("%s before thaw", what)
		}
	}
	t.Run("sends nothing", func(t *testing.T) {
		thawed.Store(false)
		cfg := serve(t, func(http.ResponseWriter, *http.Request) { inTime(t, "the server got a request") })
		i := incarnate(t, cfg, func(*fault.Op) fault.Fault { inTime(t, "on was asked"); return fault.Fault{} }, nil)
		thaw, other := i.Freeze(), i.Freeze()
		result := make(chan error)
		go func() {
			_, _, err := send(t, i, http.MethodPost, configMaps, `{}`)
			inTime(t, "the caller got its answer")
			result <- err
		}()
		other()
		other() // counts once
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("does not send what it was about to", func(t *testing.T) {
		thawed.Store(false)
		cfg := serve(t, func(http.ResponseWriter, *http.Request) { inTime(t, "the server got a request") })
		var i *fault.Incarnation
		thaws := make(chan func(), 1)
		i = incarnate(t, cfg, func(*fault.Op) fault.Fault {
			return fault.Fault{Before: func() { thaws <- i.Freeze() }}
		}, nil)
		result := make(chan error)
		go func() {
			_, _, err := send(t, i, http.MethodPost, configMaps, `{}`)
			result <- err
		}()
		thaw := <-thaws
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("receives no answer", func(t *testing.T) {
		thawed.Store(false)
		arrived, answer := make(chan struct{}), make(chan struct{})
		cfg := serve(t, func(http.ResponseWriter, *http.Request) {
			arrived <- struct{}{}
			<-answer
		})
		answered := make(chan struct{})
		i := incarnate(t, cfg, nil, func(*fault.Op, int, []byte) { close(answered) })
		result := make(chan error)
		go func() {
			_, _, err := send(t, i, http.MethodPost, configMaps, `{}`)
			inTime(t, "the caller got its answer")
			result <- err
		}()
		<-arrived
		thaw := i.Freeze()
		close(answer)
		<-answered // it is here, and the caller does not see it
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("does not see that a request failed", func(t *testing.T) {
		thawed.Store(false)
		arrived, aborted := make(chan struct{}), make(chan struct{})
		cfg := serve(t, func(http.ResponseWriter, *http.Request) {
			arrived <- struct{}{}
			<-aborted
			panic(http.ErrAbortHandler)
		})
		i := incarnate(t, cfg, nil, nil)
		result := make(chan error)
		go func() {
			_, _, err := send(t, i, http.MethodPost, configMaps, `{}`)
			inTime(t, "the caller got its error")
			result <- err
		}()
		<-arrived
		thaw := i.Freeze()
		close(aborted)
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err == nil {
			t.Error("a request that was aborted has no error")
		}
	})
	t.Run("establishes no watch", func(t *testing.T) {
		thawed.Store(false)
		cfg := serve(t, events(nil))
		var i *fault.Incarnation
		thaws := make(chan func(), 1)
		i = incarnate(t, cfg, nil, func(*fault.Op, int, []byte) { thaws <- i.Freeze() })
		result := make(chan error)
		go func() {
			response, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps+"?watch=true", ""))
			inTime(t, "the caller got its watch")
			if err == nil {
				_ = response.Body.Close()
			}
			result <- err
		}()
		thaw := <-thaws
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("delivers no event and no end", func(t *testing.T) {
		for _, how := range []string{"event", "cut", "gone"} {
			thawed.Store(false)
			lines := make(chan string)
			i := incarnate(t, serve(t, events(lines)), nil, nil)
			body := open(t, i, "configmaps")
			lines <- added(1)
			if line, err := body.ReadString('\n'); line != added(1) {
				t.Fatalf("read %q %v", line, err)
			}
			thaw := i.Freeze()
			result := make(chan string)
			go func() {
				line, err := body.ReadString('\n')
				inTime(t, fmt.Sprintf("the caller read %q %v", line, err))
				result <- line
			}()
			lines <- added(2)
			if how != "event" {
				i.Cut("configmaps", how == "gone")
			}
			meanwhile(t)
			thawed.Store(true)
			thaw()
			if line, want := <-result, map[string]string{"event": added(2), "cut": "", "gone": gone410}[how]; line != want {
				t.Errorf("%s: read %q, want %q", how, line, want)
			}
		}
	})
	t.Run("ends with the context", func(t *testing.T) {
		i := incarnate(t, serve(t, events(nil)), nil, nil)
		defer i.Freeze()()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps, "").WithContext(ctx)); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// TestHold holds that what a held watch is sent is late, and not lost; that other
// resources and requests go on; and that a held watch can be established.
func TestHold(t *testing.T) {
	for _, held := range []string{"configmaps", ""} {
		t.Run("held "+held, func(t *testing.T) {
			t.Parallel()
			lines, others := make(chan string), make(chan string)
			cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "secrets") {
					events(others)(w, r)
				} else {
					events(lines)(w, r)
				}
			})
			i := incarnate(t, cfg, nil, nil)
			var released atomic.Bool
			release, again := i.Hold(held), i.Hold(held)
			body := open(t, i, "configmaps") // established all the same
			secrets := open(t, i, "secrets")
			if got, want := i.Watches(), map[string]int{"configmaps": 1, "secrets": 1}; !cmp.Equal(got, want) {
				t.Errorf("established are %v, want %v", got, want)
			}
			result := make(chan string)
			go func() {
				var all strings.Builder
				for range 3 {
					line, err := body.ReadString('\n')
					if !released.Load() {
						t.Errorf("delivered %q %v before release", line, err)
					}
					all.WriteString(line)
				}
				result <- all.String()
			}()
			for n := range 3 {
				lines <- added(n)
			}
			again()
			again() // counts once
			if status, _, err := send(t, i, http.MethodGet, configMaps+"/a", ""); status != http.StatusOK {
				t.Errorf("a get: %d %v", status, err)
			}
			if held != "" {
				others <- added(7)
				if line, err := secrets.ReadString('\n'); line != added(7) {
					t.Errorf("another resource: %q %v", line, err)
				}
			}
			meanwhile(t)
			released.Store(true)
			release()
			if got, want := <-result, added(0)+added(1)+added(2); got != want {
				t.Errorf("delivered %q, want %q", got, want)
			}
		})
	}
	t.Run("ends with the context", func(t *testing.T) {
		t.Parallel()
		lines := make(chan string)
		i := incarnate(t, serve(t, events(lines)), nil, nil)
		ctx, cancel := context.WithCancel(t.Context())
		response, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps+"?watch=true", "").WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		lines <- added(1) + added(2) // one piece, of which the first half is read
		if _, err := io.ReadFull(response.Body, make([]byte, len(added(1)))); err != nil {
			t.Fatal(err)
		}
		defer i.Hold("configmaps")()
		cancel()
		if b, err := io.ReadAll(response.Body); len(b) > 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("read %q %v", b, err)
		}
	})
}

// TestCut holds what client-go sees of a watch that is cut.
//
// Proves N3.
func TestCut(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone %t", gone), func(t *testing.T) {
			t.Parallel()
			lines, others := make(chan string), make(chan string)
			cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "secrets") {
					events(others)(w, r)
				} else {
					events(lines)(w, r)
				}
			})
			i := incarnate(t, cfg, nil, nil)
			w, err := clientset(t, i).CoreV1().ConfigMaps("ns").Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			secrets := open(t, i, "secrets")
			lines <- added(1)
			if event := <-w.ResultChan(); event.Type != watch.Added {
				t.Fatalf("got %v", event)
			}
			release := i.Hold("configmaps")
			lines <- added(2) // received by the process's kernel, so to speak, and not by the process
			i.Cut("configmaps", gone)
			release()
			var rest []watch.Event
			for event := range w.ResultChan() {
				rest = append(rest, event)
			}
			switch {
			case gone:
				if len(rest) != 1 || rest[0].Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(rest[0].Object)) {
					t.Errorf("got %v, want one event with 410 Expired", rest)
				}
			case len(rest) > 0:
				t.Errorf("got %v, want no event", rest)
			}
			if n := i.Watches()["configmaps"]; n != 0 {
				t.Errorf("%d watches are established", n)
			}
			others <- added(3)
			if line, err := secrets.ReadString('\n'); line != added(3) {
				t.Errorf("another resource: %q %v", line, err)
			}
			i.Cut("", false)
			if line, err := secrets.ReadString('\n'); line != "" || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("after all were cut: %q %v", line, err)
			}
		})
	}
	t.Run("what was received and not read", func(t *testing.T) {
		t.Parallel()
		for name, end := range map[string]func(i *fault.Incarnation){
			"cut":  func(i *fault.Incarnation) { i.Cut("configmaps", false) },
			"gone": func(i *fault.Incarnation) { i.Cut("configmaps", true) },
			"kill": func(i *fault.Incarnation) { i.Kill() },
		} {
			for _, held := range []bool{false, true} {
				lines := make(chan string)
				i := incarnate(t, serve(t, events(lines)), nil, nil)
				response, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps+"?watch=true", ""))
				if err != nil {
					t.Fatal(err)
				}
				lines <- added(1) + added(2) // one piece, of which the first half is read
				if _, err := io.ReadFull(response.Body, make([]byte, len(added(1)))); err != nil {
					t.Fatal(err)
				}
				if held {
					defer i.Hold("configmaps")()
				}
				end(i)
				b, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if name == "gone" != (string(b) == gone410) || name != "gone" && (len(b) > 0 || err == nil) {
					t.Errorf("%s, held %t: read %q %v", name, held, b, err)
				}
			}
		}
	})
	t.Run("within an event", func(t *testing.T) {
		t.Parallel()
		lines := make(chan string)
		i := incarnate(t, serve(t, events(lines)), nil, nil)
		body := open(t, i, "configmaps")
		lines <- `{"type":`
		if _, err := body.ReadByte(); err != nil {
			t.Fatal(err)
		}
		i.Cut("configmaps", true)
		if b, err := io.ReadAll(body); string(b) != `"type":` || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("read %q %v: the last event would be glued to the one that was begun", b, err)
		}
	})
}
