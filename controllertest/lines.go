package controllertest

import (
	"bytes"
	"io"
	"log" //nolint:depguard // the type that net/http wants
	"sync"
)

// lines is a writer that notes what is written line by line, and keeps the end.
type lines struct {
	note func(line string)

	mu   sync.Mutex
	rest []byte // a line that is not complete
	tail []byte
}

const tailSize = 8 << 10

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, p...)
	l.tail = l.tail[max(0, len(l.tail)-tailSize):]
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.rest = rest
		l.note(string(line))
	}
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.tail)
}

// discard is where net/http says what the faults of a plan do to its connections.
func discard() *log.Logger { return log.New(io.Discard, "", 0) }
