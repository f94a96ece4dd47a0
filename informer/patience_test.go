package informer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

// slowLists streams a first list: an object every second until last, then nothing until the mark of its end.
// It refuses the first connections.
type slowLists struct {
	first, last, end time.Duration // of the first object, the last one and the mark; a negative end means none
	refuses          int
	decode           time.Duration // that a client takes for a list, which then is not streamed
	cut              time.Duration // after which the connection is cut; 0 means never
}

func (s *slowLists) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.refuses > 0 {
		s.refuses--
		return nil, errRefused
	}
	body, query := io.ReadCloser(&slowList{slowLists: s, ctx: r.Context(), next: s.first}), r.URL.Query()
	if s.decode > 0 && query.Has("sendInitialEvents") {
		return &http.Response{StatusCode: http.StatusUnprocessableEntity, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	} else if s.decode > 0 && !query.Has("watch") {
		body = decoding{strings.NewReader(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[]}`), s.decode}
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
}

type slowList struct {
	*slowLists
	ctx       context.Context
	now, next time.Duration
	rest      strings.Reader
	ended     bool
}

func (s *slowList) Read(p []byte) (int, error) {
	if s.rest.Len() > 0 {
		return s.rest.Read(p)
	}
	const object = `{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"default","name":"a%d","resourceVersion":"5"}}}`
	const mark = `{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"6","annotations":{"k8s.io/initial-events-end":"true"}}}}`
	at, line := s.next, fmt.Sprintf(object, s.next/time.Second)
	if at > s.last {
		at, line = s.end, mark
	}
	if at < 0 || s.ended {
		at = 24 * time.Hour
	}
	var err error
	if s.cut > 0 && at >= s.cut {
		at, err = s.cut, io.ErrUnexpectedEOF
	}
	select {
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	case <-time.After(at - s.now):
	}
	if err != nil {
		return 0, err
	}
	s.now, s.next, s.ended = at, at+time.Second, line == mark
	s.rest = *strings.NewReader(line + "\n")
	return s.rest.Read(p)
}

func (s *slowList) Close() error { return nil }

// decoding is the body of a list that is decoded after it was read.
type decoding struct {
	io.Reader
	takes time.Duration
}

func (d decoding) Close() error {
	time.Sleep(d.takes)
	return nil
}

// TestLongLists: Run waits for a first list that brings data, with a bound, and for no other one.
//
// Proves I2.
func TestLongLists(t *testing.T) {
	const slack = 100 * time.Millisecond
	for name, tc := range map[string]struct {
		server slowLists
		at     time.Duration // when Run ends or is synced, at the latest
		want   string        // part of the error of Run; "" means that it syncs
		lines  int           // of log
	}{
		"60s of events":                    {server: slowLists{last: 58 * time.Second, end: 59 * time.Second}, at: time.Minute, lines: 2},
		"late first event":                 {server: slowLists{first: 11 * time.Second, last: 25 * time.Second, end: 26 * time.Second}, at: 26 * time.Second, lines: 1},
		"a failure at the start":           {server: slowLists{refuses: 1, last: 25 * time.Second, end: 26 * time.Second}, at: 30 * time.Second, lines: 1},
		"silent after 5s":                  {server: slowLists{last: 5 * time.Second, end: -1}, at: 20 * time.Second, want: "not synced within 20s"},
		"silent after 15s":                 {server: slowLists{last: 15 * time.Second, end: -1}, at: 40 * time.Second, want: "within 40s", lines: 1},
		"cut at 15s, again and again":      {server: slowLists{last: time.Hour, cut: 15 * time.Second}, at: 10 * time.Minute, want: "its first list still brings data", lines: 29},
		"data without end":                 {server: slowLists{last: time.Hour, end: -1}, at: 10 * time.Minute, want: `not synced within 10m0s: "configmaps": its first list still brings data: if it is that long, Set.Timeout (Options.StartTimeout of an operator) must be longer`, lines: 29},
		"a list that takes long to decode": {server: slowLists{decode: 190 * time.Second}, at: 190 * time.Second, lines: 9},
		"a list that is never decoded":     {server: slowLists{decode: time.Hour}, at: 200*time.Second + 5*time.Second, want: "within 3m20s", lines: 9},
		"refused connections":              {server: slowLists{refuses: 1000}, at: 20 * time.Second, want: "within 20s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := &rest.Config{Host: "http://server", Transport: &tc.server}
				config.Wrap(informer.EndSilentWatches(0))
				var set informer.Set
				set.Add("configmaps", informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer())
				logs := testlog.New()
				ctx, cancel := context.WithCancel(logs.Context(t.Context()))
				defer cancel()
				ended, start := make(chan error, 1), time.Now()
				go func() { ended <- set.Run(ctx) }()
				select {
				case err := <-ended:
					if tc.want == "" || !errors.Is(err, informer.ErrNotSynced) || !strings.Contains(err.Error(), tc.want) {
						t.Errorf("Run() = %v, want %q", err, tc.want)
					}
				case <-set.HasSyncedChecker().Done():
					if tc.want != "" {
						t.Errorf("synced, want the error %q", tc.want)
					}
					cancel()
					<-ended
				}
				if took := time.Since(start); took > tc.at+slack {
					t.Errorf("it took %v, want %v", took, tc.at)
				}
				lines := 0
				for _, line := range logs.All() {
					if line.Message == "The first list takes long" {
						lines++
					}
				}
				if lines != tc.lines {
					t.Errorf("%d lines of log, want %d", lines, tc.lines)
				}
				time.Sleep(time.Hour) // for the list that is decoded
			})
		})
	}
}

// TestSlowHandler: Run waits ten times Timeout for a handler, because the process can have too little CPU.
//
// Proves I2.
func TestSlowHandler(t *testing.T) {
	for _, tc := range []struct {
		takes time.Duration
		want  string // part of the error of Run; "" means that the informer syncs
	}{
		{takes: 190 * time.Second},
		{takes: time.Hour, want: `not synced within 3m20s: "configmaps": the informer is synced, but SharedIndexInformer`},
	} {
		synctest.Test(t, func(t *testing.T) {
			config := &rest.Config{Host: "http://server", Transport: &slowLists{last: time.Second, end: time.Second}}
			config.Wrap(informer.EndSilentWatches(0))
			inf := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer()
			handler, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
				if strings.HasSuffix(o.(interface{ GetName() string }).GetName(), "0") {
					time.Sleep(tc.takes)
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			set := informer.Set{StopTimeout: 2 * time.Hour}
			set.Add("configmaps", inf, handler)
			ctx, cancel := context.WithCancel(quiet(t))
			time.AfterFunc(199*time.Second, func() {
				if synced := set.HasSynced(); synced != (tc.want == "") {
					t.Errorf("a handler that takes %v: synced is %t after 199s", tc.takes, synced)
				}
			})
			time.AfterFunc(201*time.Second, cancel) // Run has ended before
			if err := set.Run(ctx); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("a handler that takes %v: Run() = %v, want %q", tc.takes, err, tc.want)
			}
			time.Sleep(time.Hour) // for the timers
		})
	}
}
