package filter_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
)

// uidsIn returns uids of a shard.
func uidsIn(t *testing.T, s, n int) []string {
	t.Helper()
	var all []string
	for i := 0; len(all) < n; i++ {
		uid := strings.Repeat(string(rune('a'+i%26)), 1+i/26)
		if got, err := two.Of(object("", uid)); err != nil {
			t.Fatal(err)
		} else if got == s {
			all = append(all, uid)
		}
	}
	return all
}

func listed(t *testing.T, s *filter.Source, o metav1.ListOptions) []string {
	t.Helper()
	list, err := s.ListWithContext(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var uids []string
	if err := meta.EachListItem(list, func(o runtime.Object) error {
		m, err := meta.Accessor(o)
		uids = append(uids, string(m.GetUID()))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return uids
}

// textOf is the text of an event.
func textOf(e watch.Event) string {
	if m, err := meta.Accessor(e.Object); err == nil {
		return string(e.Type) + " " + string(m.GetUID())
	}
	return string(e.Type)
}

// TestForeign: the objects of other shards are in no list and no watch, whatever the API
// server sends, and are counted.
//
// Proves SE2.
func TestForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, foreign := uidsIn(t, 1, 2), uidsIn(t, 0, 2)
		lw := &listWatch{old: true}
		text := selectorOf(t, two, 1)
		s := source(t, filter.Objects, lw, text)
		if !s.IsWatchListSemanticsUnSupported() || source(t, filter.Objects, &listWatch{}, text).IsWatchListSemanticsUnSupported() {
			t.Error("the source does not say what its ListerWatcher says about streaming")
		}
		lw.then(object("a", foreign[0]), object("a", own[0]))
		lw.then(object("a", own[1]))
		got := listed(t, s, metav1.ListOptions{Limit: 5})
		got = append(got, listed(t, s, metav1.ListOptions{Limit: 5, Continue: "more"})...)
		if diff := cmp.Diff(own, got); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}

		w, err := s.Watch(metav1.ListOptions{AllowWatchBookmarks: true})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			in := lw.watches[0]
			for _, uid := range []string{foreign[0], own[0]} {
				in.Add(object("a", uid))
				in.Modify(object("a", uid))
				in.Delete(object("a", uid))
			}
			in.Action(watch.Bookmark, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}})
			in.Error(&metav1.Status{Code: 410})
			in.Stop()
		}()
		got = nil
		for e := range w.ResultChan() {
			got = append(got, textOf(e))
		}
		if diff := cmp.Diff([]string{"ADDED " + own[0], "MODIFIED " + own[0], "DELETED " + own[0], "BOOKMARK ", "ERROR"}, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		for _, o := range lw.options {
			if o.ShardSelector != text || o.Limit != 5 && !o.AllowWatchBookmarks {
				t.Errorf("options of a request: %+v", o)
			}
		}
		if got, want := s.Support(), (filter.Support{Sent: true, Kept: 5, Foreign: 4}); got != want {
			t.Errorf("Support is %+v, want %+v", got, want)
		}
	})
}

// TestKinds: lists of all kinds of clients are filtered.
//
// Proves SE2.
func TestKinds(t *testing.T) {
	own, foreign := uidsIn(t, 1, 1)[0], uidsIn(t, 0, 1)[0]
	unstructuredOf := func(uid string) unstructured.Unstructured {
		return unstructured.Unstructured{Object: map[string]any{"kind": "X", "apiVersion": "v1", "metadata": map[string]any{"uid": uid}}}
	}
	for name, list := range map[string]runtime.Object{
		"unstructured": &unstructured.UnstructuredList{Items: []unstructured.Unstructured{unstructuredOf(foreign), unstructuredOf(own)}},
		"metadata": &metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{
			{ObjectMeta: object("", foreign).ObjectMeta}, {ObjectMeta: object("", own).ObjectMeta},
		}},
		"objects": &metav1.List{Items: []runtime.RawExtension{{Object: object("", foreign)}, {Object: object("", own)}}},
	} {
		s := source(t, filter.Objects, &listWatch{lists: []func() (runtime.Object, error){func() (runtime.Object, error) { return list, nil }}}, selectorOf(t, two, 1))
		if got := listed(t, s, metav1.ListOptions{}); !slices.Equal(got, []string{own}) {
			t.Errorf("%s: listed %v, want %s", name, got, own)
		}
	}
}

// TestChildren: a child is there while its controller is of the shards, also if its
// controller changes. The API server gets no selector, because it cannot select by owner.
func TestChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, others := uidsIn(t, 1, 1)[0], uidsIn(t, 0, 1)[0]
		lw := &listWatch{}
		s := source(t, filter.Children, lw, selectorOf(t, two, 1))
		lw.then(child("gone", mine))
		listed(t, s, metav1.ListOptions{})
		lw.then(child("listed", mine), child("foreign", others), child("orphan", ""))
		if diff := cmp.Diff([]string{"listed"}, listed(t, s, metav1.ListOptions{})); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
		w, err := s.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "7"})
		if err != nil {
			t.Fatal(err)
		}
		in := lw.watches[0]
		for _, step := range []struct {
			send func(runtime.Object)
			obj  runtime.Object
			want string // "" is none
		}{
			{in.Modify, child("gone", others), ""}, // the second list has replaced the first
			{in.Modify, child("foreign", others), ""},
			{in.Modify, child("foreign", mine), "MODIFIED foreign"}, // adopted
			{in.Modify, child("foreign", mine), "MODIFIED foreign"},
			{in.Modify, child("listed", ""), "DELETED listed"}, // released
			{in.Modify, child("listed", others), ""},
			{in.Delete, child("listed", others), ""},
			{in.Delete, child("foreign", others), "DELETED foreign"}, // an update was not seen
			{in.Modify, child("foreign", others), ""},
			{in.Add, child("new", mine), "ADDED new"},
			{in.Delete, child("new", mine), "DELETED new"},
			{in.Add, child("orphan2", ""), ""},
		} {
			go step.send(step.obj)
			synctest.Wait()
			got := ""
			select {
			case e := <-w.ResultChan():
				got = textOf(e)
			default:
			}
			synctest.Wait()
			if got != step.want {
				t.Errorf("event %q, want %q", got, step.want)
			}
		}
		w.Stop()
		for _, o := range lw.options {
			if o.ShardSelector != "" {
				t.Errorf("options of a request: %+v", o)
			}
		}

		// A list of two pages has the children of both. A streamed list replaces them.
		lw.then(child("page1", mine))
		lw.then(child("page2", mine))
		listed(t, s, metav1.ListOptions{Limit: 1})
		listed(t, s, metav1.ListOptions{Limit: 1, Continue: "more"})
		for _, test := range []struct {
			options metav1.ListOptions
			want    string // "" is none
		}{
			{metav1.ListOptions{ResourceVersion: "7"}, "DELETED page1"},
			{metav1.ListOptions{SendInitialEvents: ptr.To(true)}, ""},
		} {
			if w, err = s.WatchWithContext(t.Context(), test.options); err != nil {
				t.Fatal(err)
			}
			go lw.watches[len(lw.watches)-1].Modify(child("page1", others))
			synctest.Wait()
			got := ""
			select {
			case e := <-w.ResultChan():
				got = textOf(e)
			default:
			}
			if got != test.want {
				t.Errorf("event %q, want %q", got, test.want)
			}
			lw.then(child("page1", mine))
			listed(t, s, metav1.ListOptions{}) // stops the watch
		}
		byNamespace := selectorOf(t, shard.Ranges{N: 2, ByNamespace: true}, 1)
		lw = &listWatch{}
		lw.then()
		listed(t, source(t, filter.Children, lw, byNamespace), metav1.ListOptions{})
		if got := lw.options[0].ShardSelector; got != byNamespace {
			t.Errorf("by namespace the selector of a request is %q", got)
		}
	})
}

// TestStoppedWatch: an event that the informer has not received is not noted. After the
// next watch has sent it again, the informer has it. No goroutine is left.
func TestStoppedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, others := uidsIn(t, 1, 1)[0], uidsIn(t, 0, 1)[0]
		lw := &listWatch{}
		s := source(t, filter.Children, lw, selectorOf(t, two, 1))
		lw.then(child("x", mine))
		listed(t, s, metav1.ListOptions{})
		for range 3 { // the first two watches end before the informer receives the event
			if _, err := s.WatchWithContext(t.Context(), metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			go lw.watches[len(lw.watches)-1].Modify(child("x", others))
			synctest.Wait()
		}
		w, err := s.WatchWithContext(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go lw.watches[3].Modify(child("x", others))
		if got := textOf(<-w.ResultChan()); got != "DELETED x" {
			t.Errorf("event %q, want the deletion", got)
		}
		w.Stop()
		if _, open := <-w.ResultChan(); open {
			t.Error("the watch sends after Stop")
		}
		for i, w := range lw.watches {
			if !w.IsStopped() {
				t.Errorf("watch %d is open", i)
			}
		}
	})
}

// TestUnhashable: an object that no hash can be made of is an error, and is not dropped.
//
// Proves SE2.
func TestUnhashable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const want = `object "o-" has no metadata.uid`
		lw := &listWatch{}
		s := source(t, filter.Objects, lw, selectorOf(t, two, 0))
		lw.then(object("a", ""))
		if _, err := s.List(metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("list: %v, want %s", err, want)
		}
		w, err := s.Watch(metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go lw.watches[0].Add(object("a", ""))
		e := <-w.ResultChan()
		if status, ok := e.Object.(*metav1.Status); e.Type != watch.Error || !ok || !strings.Contains(status.Message, want) {
			t.Errorf("watch: %v, want an error with %s", e, want)
		}
		w.Stop()
	})
}

// TestFailures: errors of the API server pass unchanged.
func TestFailures(t *testing.T) {
	broken := errors.New("broken")
	s := source(t, filter.Objects, &cache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, broken },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, broken },
	}, selectorOf(t, two, 0))
	if _, err := s.List(metav1.ListOptions{}); !errors.Is(err, broken) {
		t.Errorf("list: %v", err)
	}
	if _, err := s.Watch(metav1.ListOptions{}); !errors.Is(err, broken) {
		t.Errorf("watch: %v", err)
	}
}

// TestRejects: an error names the field, the value and the cure, in one short line.
func TestRejects(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	objects := func(text string) func() error {
		return func() error { _, err := filter.Objects(&listWatch{}, text); return err }
	}
	const uid = "shardRange(object.metadata.uid, '0x0000000000000000', '0x0000000000000001')"
	for name, test := range map[string]struct {
		do   func() error
		want string
	}{
		"no ListerWatcher": {func() error { _, err := filter.Objects(nil, ""); return err }, "the ListerWatcher is nil: pass"},
		"no selector":      {objects(""), "the shard selector is empty, which would be all objects: pass"},
		"long selector":    {objects(big), "the shard selector is not valid"},
		"many ranges":      {objects(strings.TrimSuffix(strings.Repeat(uid+" || ", 1<<14), " || ")), "pass the result of Ranges.Selector"},
		"spaces":           {objects(" " + uid), "pass the result of Ranges.Selector"},
		"rest":             {objects(uid + ")"), "is not a range"},
		"other key":        {objects("shardRange(object.metadata.name, '0x0000000000000000', '0x0000000000000001')"), "is not a range of the uid or of the namespace"},
		"two keys":         {objects(uid + " || shardRange(object.metadata.namespace, '0x0000000000000002', '0x0000000000000003')"), "is not a range of the uid or of the namespace"},
		"order":            {objects(uid + " || " + uid), "is empty or not above"},
		"empty range":      {objects("shardRange(object.metadata.uid, '0x0000000000000001', '0x0000000000000001')"), "is empty or not above"},
		"end at 0":         {objects("shardRange(object.metadata.uid, '0x0000000000000000', '0x0000000000000000')"), "the end of the range is 0"},
		"short hash":       {objects("shardRange(object.metadata.uid, '0x0', '0x1')"), "16 lowercase hexadecimal digits"},
		"upper case":       {objects("shardRange(object.metadata.uid, '0x0000000000000000', '0x000000000000000A')"), "16 lowercase hexadecimal digits"},
		"sign":             {objects("shardRange(object.metadata.uid, '0x+000000000000000', '0x0000000000000001')"), "16 lowercase hexadecimal digits"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.do()
			if err == nil || !strings.HasPrefix(err.Error(), "filter: ") || strings.Count(err.Error(), "filter: ") != 1 || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 512 {
				t.Errorf("error %.600v, want one of package filter with %q", err, test.want)
			}
		})
	}
}

// FuzzHostile: whatever is in an object and in a selector, no list panics, and what it
// returns is what the API server's own code selects.
func FuzzHostile(f *testing.F) {
	f.Add("default", "0e4362f8-66ea-4ebc-bbd5-7ebb1bd88eff", "owner", uint64(1)<<63, "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')")
	f.Add("", "", "", uint64(1), "shardRange(object.metadata.namespace, '0xffffffffffffffff', '0x10000000000000000')")
	f.Add(strings.Repeat("n", 1<<16), "\x00\xff", "\x00", uint64(0), "shardRange(")
	f.Fuzz(func(t *testing.T, namespace, uid, owner string, start uint64, text string) {
		r := shard.Ranges{N: 2, ByNamespace: start%2 == 0, Starts: []uint64{start}}
		if s, err := r.Selector([]int{1}); err == nil && text == "" {
			text = s
		}
		o := object(namespace, uid)
		o.OwnerReferences = child("", owner).OwnerReferences
		for _, make := range []func(cache.ListerWatcher, string) (*filter.Source, error){filter.Objects, filter.Children} {
			lw := &listWatch{}
			lw.then(o)
			s, err := make(lw, text)
			if err != nil {
				if len(err.Error()) > 1024 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
				continue
			}
			list, err := s.ListWithContext(t.Context(), metav1.ListOptions{})
			if err != nil || lw.options[0].ShardSelector == "" {
				continue
			}
			if in, err := upstream(t, text).Matches(o); err != nil || in != (meta.LenList(list) == 1) {
				t.Errorf("selector %q, namespace %.100q, uid %.100q: the API server selects it: %t, %v, and the list has %d objects", text, namespace, uid, in, err, meta.LenList(list))
			}
		}
	})
}
