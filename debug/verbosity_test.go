package debug_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

// post sends a form of the page, with headers.
func post(t *testing.T, h http.Handler, form string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(testlog.New().Context(t.Context()), http.MethodPost, "/debug/controllers", strings.NewReader(form))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// newVerbose returns a page of a log with the verbosity 1, and its settings.
func newVerbose() (page *debug.Page, set *[]int) {
	now := 1
	set = &[]int{}
	return &debug.Page{Verbosity: func(level int) int {
		former := now
		now = level
		*set = append(*set, level)
		return former
	}}, set
}

// TestVerbosity: the verbosity that a form sets ends by itself, with the level before the first of overlapping forms.
func TestVerbosity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page, set := newVerbose()
		want := func(when string, levels ...int) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(*set, levels) {
				t.Errorf("%s: the levels are %v, want %v", when, *set, levels)
			}
		}
		if w := post(t, page, "verbosity=4&for=10m"); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "?" {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
		want("after a form", 4)
		var shown struct {
			Verbosity *struct {
				Level, Former int
				Until         time.Time
			}
		}
		body := get(t, page, url.Values{"format": {"json"}}).Body.Bytes()
		if err := json.Unmarshal(body, &shown); err != nil || shown.Verbosity == nil || shown.Verbosity.Level != 4 || shown.Verbosity.Former != 1 || time.Until(shown.Verbosity.Until) != 10*time.Minute {
			t.Errorf("the page has %s, %v", body, err)
		}
		if body := get(t, page, nil).Body.String(); !strings.Contains(body, `<form method="post">`) || !strings.Contains(body, "It is 4 until") {
			t.Errorf("the page has no form: %.2000s", body)
		}
		time.Sleep(9 * time.Minute)
		post(t, page, "verbosity=5") // 10m
		want("after a second form", 4, 5)
		time.Sleep(9 * time.Minute)
		want("after the end of the first form", 4, 5)
		time.Sleep(2 * time.Minute)
		want("after the end of the second form", 4, 5, 1)
		post(t, page, "verbosity=3&for=1h")
		post(t, page, "verbosity=3&for=0s")
		want("after an end that was asked for", 4, 5, 1, 3, 1)
		post(t, page, "verbosity=3&for=0s")
		time.Sleep(2 * time.Hour)
		want("at last", 4, 5, 1, 3, 1)
		if body := get(t, page, url.Values{"format": {"json"}}).Body.String(); strings.Contains(body, "verbosity") {
			t.Errorf("the page has a verbosity: %s", body)
		}
	})
}

// TestVerbosityBadInput: forms that are not valid, of other sites, and for a page that cannot set it.
func TestVerbosityBadInput(t *testing.T) {
	page, set := newVerbose()
	for _, tt := range []struct {
		form    string
		headers []string
		want    int
	}{
		{"", nil, http.StatusBadRequest},
		{"verbosity=6", nil, http.StatusBadRequest},
		{"verbosity=-1", nil, http.StatusBadRequest},
		{"verbosity=<script>", nil, http.StatusBadRequest},
		{"verbosity=4&for=61m", nil, http.StatusBadRequest},
		{"verbosity=4&for=-1s", nil, http.StatusBadRequest},
		{"verbosity=4&for=soon", nil, http.StatusBadRequest},
		{"verbosity=4&x=" + strings.Repeat("x", 1<<20), nil, http.StatusBadRequest},
		{"verbosity=4", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{"verbosity=4", []string{"Origin", "https://example.net"}, http.StatusForbidden},
	} {
		w := post(t, page, tt.form, tt.headers...)
		if w.Code != tt.want || w.Body.Len() > 300 || strings.Contains(w.Body.String(), "<script>") {
			t.Errorf("%.30q %q: status %d, want %d: %.300s", tt.form, tt.headers, w.Code, tt.want, w.Body)
		}
	}
	if len(*set) > 0 {
		t.Errorf("the levels are %v, want none", *set)
	}
	if w := post(t, &debug.Page{}, "verbosity=4"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("a page that cannot set it: status %d", w.Code)
	}
	if body := get(t, &debug.Page{}, nil).Body.String(); strings.Contains(body, `method="post"`) {
		t.Error("a page that cannot set it has a form")
	}
}

type pausedKeys []types.NamespacedName

func (p pausedKeys) Len() int                              { return len(p) }
func (p pausedKeys) Has(k types.NamespacedName) bool       { return slices.Contains(p, k) }
func (p pausedKeys) Keys(limit int) []types.NamespacedName { return p[:min(limit, len(p))] }

// TestPaused: the page lists some paused objects, and the story of one says so. Their names are hostile.
//
// It proves DB2 and DB3.
func TestPaused(t *testing.T) {
	page := &debug.Page{}
	var keys pausedKeys
	for _, name := range hostile {
		keys = append(keys, key{Namespace: name, Name: name})
	}
	for i := range 10_000 {
		keys = append(keys, key{Namespace: "shop", Name: fmt.Sprint(i)})
	}
	page.Controller("widgets").Paused = keys
	for _, query := range []url.Values{{"key": {"shop/7"}}, {"key": {"shop/7"}, "format": {"json"}}} {
		body := get(t, page, query).Body.String()
		if len(body) > 256<<10 || strings.Contains(body, "<img") || strings.ContainsAny(body, "\x00\x1b\r\u202e") || strings.Count(body, "<script") > 1 {
			t.Errorf("the page has %d bytes or other markup: %.300s", len(body), body)
		}
	}
	s := getJSON(t, page, "shop/7")
	if len(s.Story) != 1 || !strings.HasPrefix(s.Story[0].Verdict, "An annotation pauses it") {
		t.Errorf("the story is %+v", s.Story)
	}
	last := s.Controllers[0].Counts[len(s.Controllers[0].Counts)-1]
	if diff := cmp.Diff(struct {
		State       string
		Keys, Shown int
	}{"paused", len(keys), 50}, last); diff != "" {
		t.Errorf("count (-want +got):\n%s", diff)
	}
	if other := getJSON(t, page, "shop/none"); len(other.Story) != 0 {
		t.Errorf("the story of another key is %+v", other.Story)
	}
}
