package controllertest

import (
	"bytes"
	"io"
	"log" //nolint:depguard // the type that net/http wants
	"sync"
)

// lines is a writer that calls note for each line, and keeps the end of the text.
type lines struct {
	note func(line string)

	mu   sync.Mutex
	rest []byte // an incomplete line
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

// discard returns a logger for net/http's errors about connections, which faults cause.
func discard() *log.Logger { return log.New(io.Discard, "", 0) }
