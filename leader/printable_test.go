package leader_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/testlog"
)

// lockedBuffer is written by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// TestLogIsOneLine: the text of a server's or proxy's error does not begin a line of log.
func TestLogIsOneLine(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		e.StartTimeout = 30 * time.Second
		c.On(func(string, string) fault {
			return fault{Err: errors.New("a\nb\x1b[2K\rok " + strings.Repeat("x", 1<<20))}
		})
		var out lockedBuffer
		logger := testlog.Text(&out, 4)
		if err := e.Run(klog.NewContext(t.Context(), logger), untilDone); err == nil {
			t.Error("Run() = nil, want an error")
		}
		found := 0
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, `err="a\\nb`) {
				found++
			}
			if len(line) > 8<<10 || strings.ContainsAny(line, "\x1b\r") || strings.HasPrefix(line, "b") {
				t.Errorf("line of log of %d bytes: %.300q", len(line), line)
			}
		}
		if found < 2 {
			t.Errorf("%d lines about the error, want some", found)
		}
	})
}
