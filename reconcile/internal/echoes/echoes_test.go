package echoes

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile/internal/triggers"
)

// object is an object in a version, of the first generation.
func object(uid types.UID, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: version, Generation: 1}}
}

// wrote is a Memory in which a call of key a has made the versions of object u.
func wrote(versions ...string) *Memory[string] {
	m := &Memory[string]{}
	oneCall(m, versions...)
	return m
}

// oneCall is a call of key a that succeeds.
func oneCall(m *Memory[string], versions ...string) {
	m.Take("a")
	m.Begin("a", true)
	for _, v := range versions {
		m.Sending("a")
		m.Answered("a", calls.Version{UID: "u", Version: v})
	}
	m.End("a", Confirm)
}

// TestJudge: which events are echoes of the write of version 7 of object u by a call of key a.
func TestJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		kind        string
		old, object metav1.Object
		key         string
		want        Verdict
	}{
		"the write":             {"update", object("u", "6"), object("u", "7"), "a", Confirm},
		"of a new object":       {"add", nil, object("u", "7"), "a", Confirm},
		"for another key":       {"update", object("u", "6"), object("u", "7"), "b", Foreign},
		"of another version":    {"update", object("u", "7"), object("u", "8"), "a", Foreign},
		"of another object":     {"update", object("v", "6"), object("v", "7"), "a", Foreign},
		"of a replaced object":  {"update", object("v", "6"), object("u", "7"), "a", Confirm},
		"of an unknown object":  {"update", nil, nil, "a", Foreign},
		"without a version":     {"update", object("u", ""), object("u", ""), "a", Foreign},
		"without a UID":         {"update", object("", "6"), object("", "7"), "a", Foreign},
		"of no number":          {"update", object("u", "x"), object("u", "7"), "a", Foreign},
		"of a first list":       {"list", nil, object("u", "7"), "a", Foreign},
		"a resync":              {"resync", object("u", "7"), object("u", "7"), "a", Foreign},
		"unchanged":             {"unchanged", nil, object("u", "7"), "a", Foreign},
		"a deletion by another": {"delete", nil, object("u", "7"), "a", Foreign},
		"a step back":           {"update", object("u", "9"), object("u", "7"), "a", Foreign},
	} {
		m := wrote("7")
		if got := m.Judge(controllerkit.Event{Kind: tt.kind, Old: tt.old, Object: tt.object}, tt.key, Event{}); got != tt.want {
			t.Errorf("%s: verdict %d, want %d", name, got, tt.want)
		}
	}
	m := wrote("") // an own deletion
	if got := m.Judge(controllerkit.Event{Kind: "delete", Object: object("u", "9")}, "a", Event{}); got != Confirm {
		t.Errorf("an own deletion: verdict %d, want an echo", got)
	}
	if got := m.Judge(controllerkit.Event{Kind: "update", Old: object("u", "8"), Object: object("u", "9")}, "a", Event{}); got != Foreign {
		t.Errorf("an update beside an own deletion: verdict %d, want another's", got)
	}
}

// TestConfirmOnce: of several echoes after a call the first one confirms, and so does one that came
// during the call.
func TestConfirmOnce(t *testing.T) {
	echo := func(m *Memory[string], version string) Verdict {
		return m.Judge(controllerkit.Event{Kind: "update", Old: object("u", "1"), Object: object("u", version)}, "a", Event{})
	}
	m := wrote("7", "8", "9")
	if got := echo(m, "7"); got != Confirm {
		t.Errorf("the first echo: %d, want %d", got, Confirm)
	}
	if got := echo(m, "8"); got != Wait {
		t.Errorf("the second echo: %d, want %d", got, Wait)
	}
	oneCall(m, "10")
	if got := echo(m, "10"); got != Confirm {
		t.Errorf("the first echo of the next call: %d, want %d", got, Confirm)
	}

	m = wrote()
	m.Take("a")
	for _, version := range []string{"7", "8"} {
		m.Sending("a")
		m.Answered("a", calls.Version{UID: "u", Version: version})
	}
	if got := echo(m, "7"); got != Wait {
		t.Errorf("an echo during the call: %d, want %d", got, Wait)
	}
	if _, got := m.End("a", Confirm); got != Confirm {
		t.Errorf("the end of the call: %d, want %d", got, Confirm)
	}
	if got := echo(m, "8"); got != Wait {
		t.Errorf("an echo after the end: %d, want %d", got, Wait)
	}
}

// TestRestore: after a restore of etcd, whose new history uses a version again, no event of another
// passes for one that a call has read.
func TestRestore(t *testing.T) {
	m := wrote("7")
	oneCall(m) // has read version 7
	judge := func(from, to string) Verdict {
		return m.Judge(controllerkit.Event{Kind: "update", Old: object("u", from), Object: object("u", to)}, "a", Event{})
	}
	if got := judge("6", "7"); got != Seen {
		t.Errorf("before the restore: verdict %d, want that a call has read it", got)
	}
	if got := judge("7", "3"); got != Foreign {
		t.Errorf("the restore: verdict %d, want another's", got)
	}
	if got := judge("3", "7"); got != Foreign {
		t.Errorf("after the restore: verdict %d, want another's", got)
	}
}

// TestComesBack: an object that leaves the selection of an informer and comes back in the same
// version runs its key, although a call has read this version.
func TestComesBack(t *testing.T) {
	m := wrote("7")
	oneCall(m) // has read version 7
	if got := m.Judge(controllerkit.Event{Kind: "delete", Object: object("u", "7")}, "a", Event{}); got != Foreign {
		t.Errorf("it leaves: verdict %d, want another's", got)
	}
	oneCall(m) // has seen that it is absent
	if got := m.Judge(controllerkit.Event{Kind: "add", Object: object("u", "7")}, "a", Event{}); got != Foreign {
		t.Errorf("it comes back: verdict %d, want another's", got)
	}
}

// TestLate: a write that ends after Clear changes nothing, and nor does one without a version.
func TestLate(t *testing.T) {
	m := &Memory[string]{}
	m.Sending("a")
	m.Clear()
	m.Answered("a", calls.Version{UID: "u", Version: "7"})
	if foreign, verdict := m.End("a", Confirm); len(foreign) > 0 || verdict != Seen || m.Used() {
		t.Errorf("after Clear: %d events, verdict %d", len(foreign), verdict)
	}
	m.Sending("a")
	m.Answered("a", calls.Version{})
	if got := m.Judge(controllerkit.Event{Kind: "delete", Object: object("", "")}, "a", Event{}); got != Foreign {
		t.Errorf("the deletion of an object without a UID: verdict %d, want another's", got)
	}
}

// TestHeld: events that come before the response are judged at the end, with what they carry, and no
// more of them than maxHeld wait.
func TestHeld(t *testing.T) {
	m := &Memory[string]{}
	m.Sending("a")
	event := func(version int) Verdict {
		return m.Judge(controllerkit.Event{Kind: "update", Old: object("u", fmt.Sprint(version-1)), Object: object("u", fmt.Sprint(version))}, "a",
			Event{Why: triggers.Reason{Mask: uint64(version)}, Options: controllerkit.AddOptions{Priority: version}})
	}
	for n := range maxHeld {
		if got := event(n + 2); got != Held {
			t.Fatalf("event %d: verdict %d, want that it waits", n, got)
		}
	}
	if got := event(1000); got != Foreign {
		t.Errorf("one event more: verdict %d, want another's", got)
	}
	m.Answered("a", calls.Version{UID: "u", Version: "5"})
	if got := event(1001); got != Foreign {
		t.Errorf("after the response: verdict %d, want another's", got)
	}
	foreign, verdict := m.End("a", Wait)
	if len(foreign) != maxHeld-1 || verdict != Wait || foreign[0].Why.Mask != 2 || foreign[0].Options.Priority != 2 {
		t.Errorf("%d events of others (%+v), and verdict %d", len(foreign), foreign[0], verdict)
	}
	if foreign, verdict := m.End("a", Wait); len(foreign) > 0 || verdict != Seen {
		t.Errorf("the next end: %d events, verdict %d", len(foreign), verdict)
	}
}

// TestBounds: a key is known for a minute after its last write, however many keys write then, and
// while its call runs. The numbers of keys and versions are bounded.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Memory[string]{}
		m.Sending("running")
		oneCall(m, "7")
		known := func() bool {
			return m.Judge(controllerkit.Event{Kind: "update", Old: object("u", "6"), Object: object("u", "7")}, "a", Event{}) == Confirm
		}
		other := func(n int) { m.Sending(fmt.Sprint(n)); m.End(fmt.Sprint(n), Confirm) }
		time.Sleep(lifetime)
		other(1)
		if !known() {
			t.Error("the key is forgotten after a minute")
		}
		time.Sleep(time.Nanosecond)
		if known() {
			t.Error("the version is known for longer than a minute")
		}
		oneCall(m, "8") // it writes again
		time.Sleep(lifetime)
		other(2)
		if m.entryLocked("a") == nil {
			t.Error("the key is forgotten although it has written lately")
		}
		time.Sleep(lifetime)
		other(3)
		if m.entryLocked("a") != nil {
			t.Error("the key is kept for ever")
		}
		if e := m.entryLocked("running"); e == nil || e.underWay != 1 {
			t.Error("the key of a running call is forgotten")
		}
		for n := range 3 * maxKeys {
			other(n)
		}
		if n := len(m.young) + len(m.old); n > 2*maxKeys+1 {
			t.Errorf("%d keys are kept", n)
		}
		for n := range 2 * maxVersions {
			m.Sending("a")
			m.Answered("a", calls.Version{UID: "u", Version: fmt.Sprint(n)})
		}
		if n := len(m.entryLocked("a").made); n != maxVersions {
			t.Errorf("%d versions are kept, want %d", n, maxVersions)
		}
	})
}

// TestMemory: an entry is small, because each key that writes has one.
func TestMemory(t *testing.T) {
	m := &Memory[types.NamespacedName]{}
	key := types.NamespacedName{Namespace: "ns", Name: "name"}
	write := func() {
		m.Take(key)
		m.Begin(key, true)
		m.Sending(key)
		m.Answered(key, calls.Version{UID: "u", Version: "7"})
		m.End(key, Confirm)
	}
	write()
	write()
	if n := testing.AllocsPerRun(100, write); n > 0 {
		t.Errorf("%v allocations of a key's next call with a write, want none", n)
	}
}
