package recorder_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/internal/testlog"
)

// TestLogIsOneLine: the text of a server's or proxy's error is one line of log of bounded
// length, without control characters, and the error keeps its identity.
func TestLogIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.Join(errors.New("a\x1b[2K\rok"), errors.New(strings.Repeat("x", 1<<20)))
		store := eventStore{fail: func(int, string) (bool, error) { return false, cause }}
		r, logs := newRecorder(&store), testlog.New()
		stop := runEvents(t, logs.Context(t.Context()), r)
		say(r, "a", "copied")
		time.Sleep(time.Hour)
		stop()
		lines := logs.Find("Dropped Events")
		if len(lines) == 0 {
			t.Fatal("no line about the dropped event")
		}
		for _, l := range lines {
			err := l.Values["err"].(error)
			text := err.Error()
			if len(text) > 8<<10 || strings.ContainsAny(text, "\x1b\r\n") || !strings.Contains(text, `a\x1b[2K\rok\nxxx`) || !errors.Is(err, cause) {
				t.Errorf("the error has %d bytes: %.100q", len(text), text)
			}
		}
	})
}
