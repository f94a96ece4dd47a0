package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// A violation is a promise that did not hold.
type violation struct {
	Minute float64
	Text   string
}

// A soaking is a run: its state on disk, and what it is made of.
type soaking struct {
	options `json:"-"`

	Identity   string // of the settings and programs
	Elapsed    time.Duration
	Parts      int // of the run: the interruptions, and one
	Checks     int
	Changes    int
	Settled    []float64 // seconds from the end of the last change and fault until all was right, for each check
	Faults     map[string]int
	Exits      map[string]int // of replicas that ended by themselves
	Violations []violation

	samples []sample
}

// open opens the folder of a run, or makes it.
func open(o options) (*soaking, error) {
	h := sha256.New()
	for _, file := range []string{o.controlplane, o.tenant, o.website} {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("a program is missing: %w: make soak builds it", err)
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	s := &soaking{options: o, Faults: map[string]int{}, Exits: map[string]int{}}
	identity := fmt.Sprintf("soak 1, objects %d, replicas %d, etcds %d, servers %d, programs %x", o.objects, o.replicas, o.etcds, o.servers, h.Sum(nil)[:8])
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(s.path("state.json"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		entries, err := os.ReadDir(o.dir)
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 {
			return nil, fmt.Errorf("the folder %s is not that of a soak: name an empty or a new one", o.dir)
		}
		s.Identity = identity
		return s, s.save()
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(data, s); err != nil || s.Faults == nil || s.Exits == nil {
		return nil, fmt.Errorf("state.json of the folder %s cannot be read: name a new folder: %w", o.dir, err)
	}
	if s.Identity != identity {
		return nil, fmt.Errorf("the folder %s has a run of %q, this one is %q: name a new folder", o.dir, s.Identity, identity)
	}
	return s, s.loadSamples()
}

// loadSamples reads the samples of earlier parts of the run.
func (s *soaking) loadSamples() error {
	data, err := os.ReadFile(s.path("samples.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was interrupted before the first ones
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var m sample
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			break // the run was killed while it wrote this line
		}
		s.samples = append(s.samples, m)
	}
	return err
}

func (s *soaking) path(name string) string { return filepath.Join(s.dir, name) }

// save writes the state. A crash leaves the old one or the new one.
func (s *soaking) save() error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.path("state.tmp"), data, 0o644); err != nil {
		return err
	}
	return os.Rename(s.path("state.tmp"), s.path("state.json"))
}

// keep adds samples, also to their file.
func (s *soaking) keep(samples []sample) error {
	s.samples = append(s.samples, samples...)
	var lines bytes.Buffer
	for _, m := range samples {
		if err := json.NewEncoder(&lines).Encode(m); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(s.path("samples.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(lines.Bytes())
	return errors.Join(err, f.Close())
}

// violate records a violation with its evidence in a file of its own.
func (s *soaking) violate(text, evidence string) error {
	s.Violations = append(s.Violations, violation{Minute: s.Elapsed.Minutes(), Text: text})
	return os.WriteFile(s.path(fmt.Sprintf("violation-%d.txt", len(s.Violations))), []byte(text+"\n\n"+evidence), 0o644)
}
