// Package lines reads the output of a process.
package lines

import (
	"bytes"
	"io"
	"log"
	"sync"
)

// A Writer calls Note for each line, and keeps the end of the text.
type Writer struct {
	Note func(line string)

	mu   sync.Mutex
	rest []byte // an incomplete line
	tail []byte
}

const tailSize = 8 << 10

// Write implements io.Writer.
func (l *Writer) Write(p []byte) (int, error) {
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
		l.Note(string(line))
	}
}

// Text returns the end of the text.
func (l *Writer) Text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.tail)
}

// Discard returns a logger for net/http's errors about connections, which faults cause.
func Discard() *log.Logger { return log.New(io.Discard, "", 0) }
