package gamedays

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A line is one of a replica's log.
type line struct {
	at     time.Time // when it was read
	pod    string
	text   string
	values map[string]any
}

// message returns the line's message: slog and zerolog name it differently.
func (l line) message() string {
	for _, key := range []string{"msg", "message"} {
		if text, ok := l.values[key].(string); ok {
			return text
		}
	}
	return ""
}

// isError reports whether the line has the level of an error.
func (l line) isError() bool {
	level, _ := l.values["level"].(string)
	return strings.EqualFold(level, "error")
}

// A journal reads the log of a replica strictly: each line is one JSON object, no key stands in it twice, and
// none of the secrets does.
type journal struct {
	pod     string
	secrets func() []string

	mu     sync.Mutex
	rest   string
	lines  []line
	faults []error
}

// Write implements io.Writer. It never fails: a full disk is a row of its own.
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rest += string(p)
	for {
		text, rest, ok := strings.Cut(j.rest, "\n")
		if !ok {
			return len(p), nil
		}
		j.rest = rest
		l := line{at: time.Now(), pod: j.pod, text: text}
		var err error
		if l.values, err = strictJSON(text); err == nil && l.message() == "" {
			err = errors.New("no message")
		}
		for _, s := range j.secrets() {
			if strings.Contains(text, s) {
				err = errors.New("a secret")
				l.text = strings.ReplaceAll(text, s, "SECRET")
			}
		}
		if err != nil {
			j.faults = append(j.faults, fmt.Errorf("the log of %s: %w: %s", j.pod, err, l.text))
		}
		j.lines = append(j.lines, l)
	}
}

func (j *journal) all() []line {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]line(nil), j.lines...)
}

// wrong returns what was wrong with the lines.
func (j *journal) wrong() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(j.faults...)
}

// strictJSON decodes a JSON object, and nothing after it, and returns an error for a key that stands twice in an object.
func strictJSON(text string) (map[string]any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	v, err := value(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the object")
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not an object")
	}
	return object, nil
}

func value(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		object := map[string]any{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			if _, ok := object[key.(string)]; ok {
				return nil, fmt.Errorf("the key %q twice", key)
			}
			if object[key.(string)], err = value(d); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := value(d)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	}
	return token, nil
}
