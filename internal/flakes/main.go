// Command flakes finds the tests that do not give the same result each time, and the slow ones.
//
//	go test -json ./... | go run ./internal/flakes -out bin/test/root.json
//	go run ./internal/flakes bin/test
//
// The first form stores the stream of go test -json in a file and prints it like go test: a line
// for each package, and the output of failed tests. In the end it prints the number of skipped
// tests for each reason. The exit code is that of go test if the shell has the option pipefail.
//
// The second form reads all .json files below the folders. It prints the tests that failed, those
// that failed and passed, and the slowest tests and packages.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	out := flag.String("out", "", "`file` for the stream of standard input")
	verbose := flag.Bool("v", false, "with -out, print the output of all tests")
	flag.Parse()
	if err := run(*out, *verbose, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "flakes:", err)
		os.Exit(1)
	}
}

func run(out string, verbose bool, folders []string) error {
	switch {
	case out != "" && len(folders) > 0:
		return errors.New("-out reads standard input: use it without folders")
	case out == "" && len(folders) == 0:
		return errors.New("no folder: name one with files of go test -json, or use -out to make such a file")
	case out == "":
		var r record
		for _, folder := range folders {
			if err := r.readAll(folder); err != nil {
				return err
			}
		}
		return r.print(os.Stdout)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	return errors.Join(show(io.TeeReader(os.Stdin, file), os.Stdout, verbose), file.Close())
}

// event is a line of go test -json: see go doc test2json.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

func (e event) id() id { return id{e.Package, e.Test} }

// id is a test, or with an empty test a package.
type id struct{ pkg, test string }

func (i id) String() string { return strings.TrimSpace(i.pkg + " " + i.test) }

// events calls f with each event. A line that is no event, such as a message of the go command, is
// an event with this output alone. A line can be long, because tests print what they like.
func events(r io.Reader, f func(event)) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &e) != nil || e.Action == "" {
				e = event{Output: string(line)}
			}
			f(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// show prints the events as go test without -json does.
func show(r io.Reader, w io.Writer, verbose bool) error {
	write := func(text string) { fmt.Fprintf(w, "%s", text) } // a closed pipe ends the program
	kept := map[id]*strings.Builder{}                         // the output of running tests and packages
	flush := func(i id) {
		if text := kept[i]; text != nil && !verbose {
			write(text.String())
		}
		delete(kept, i)
	}
	skipped := map[string][]id{} // by reason
	err := events(r, func(e event) {
		i := e.id()
		switch e.Action {
		case "output":
			switch {
			case e.Test == "" && (verbose || strings.HasPrefix(e.Output, "ok  \t") || strings.HasPrefix(e.Output, "?   \t")):
				write(e.Output)
			case !verbose && strings.HasPrefix(e.Output, "=== "): // RUN, PAUSE, CONT, NAME
			default:
				if kept[i] == nil {
					kept[i] = &strings.Builder{}
				}
				kept[i].WriteString(e.Output)
				if verbose {
					write(e.Output)
				}
			}
		case "pass", "skip":
			if e.Action == "skip" && e.Test != "" {
				why := reason(kept[i])
				skipped[why] = append(skipped[why], i)
			}
			delete(kept, i)
		case "fail":
			if e.Test == "" { // tests that a panic or the timeout of the package ended
				left := slices.DeleteFunc(slices.Collect(maps.Keys(kept)), func(k id) bool { return k.pkg != i.pkg || k.test == "" })
				for _, k := range slices.SortedFunc(slices.Values(left), func(a, b id) int { return cmp.Compare(a.test, b.test) }) {
					flush(k)
				}
			}
			flush(i)
		default: // errors of the compiler, or a line that is no event
			write(e.Output)
		}
	})
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		write(summary(why, skipped[why]))
	}
	return err
}

// logLine is a line of t.Skip or t.Log.
var logLine = regexp.MustCompile(`(?m)^ +\S+\.go:\d+: (.*)$`)

// reason returns the last line that a skipped test logged.
func reason(output *strings.Builder) string {
	if output != nil {
		if lines := logLine.FindAllStringSubmatch(output.String(), -1); len(lines) > 0 {
			return lines[len(lines)-1][1]
		}
	}
	return "it gives no reason"
}

// summary returns the line of the tests that were skipped for a reason. It names the first three.
func summary(why string, tests []id) string {
	const most = 3
	var names []string
	for _, i := range tests[:min(most, len(tests))] {
		names = append(names, i.String())
	}
	text := strings.Join(names, ", ")
	if n := len(tests) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("skipped %d: %s (%s)\n", len(tests), why, text)
}

// result counts the ends of a test or package.
type result struct {
	failed, passed int
	longest        time.Duration
}

// record has the results of all streams.
type record struct {
	streams int
	results map[id]result
}

// readAll reads the .json files below the folder.
func (r *record) readAll(folder string) error {
	before := r.streams
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".json" {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		return r.read(file)
	})
	if err == nil && r.streams == before {
		err = fmt.Errorf("%s has no .json file: make one with go test -json", folder)
	}
	return err
}

func (r *record) read(stream io.Reader) error {
	r.streams++
	if r.results == nil {
		r.results = map[id]result{}
	}
	return events(stream, func(e event) {
		if e.Package == "" || e.Action != "pass" && e.Action != "fail" {
			return
		}
		s := r.results[e.id()]
		if e.Action == "fail" {
			s.failed++
		} else {
			s.passed++
		}
		s.longest = max(s.longest, time.Duration(e.Elapsed*float64(time.Second)))
		r.results[e.id()] = s
	})
}

// slowest is the number of slow tests and packages that are printed.
const slowest = 20

func (r *record) print(w io.Writer) error {
	var b strings.Builder
	ids := slices.SortedFunc(maps.Keys(r.results), func(a, b id) int {
		return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test))
	})
	list := func(title string, belongs func(id, result) bool) {
		fmt.Fprintf(&b, "%s:\n", title)
		n := 0
		for _, i := range ids {
			if s := r.results[i]; belongs(i, s) {
				n++
				fmt.Fprintf(&b, "  %v: failed %d, passed %d\n", i, s.failed, s.passed)
			}
		}
		if n == 0 {
			b.WriteString("  none\n")
		}
	}
	fmt.Fprintf(&b, "%d files of go test -json\n", r.streams)
	// A package without a failed test can fail too, for example because it does not compile.
	list("failed", func(_ id, s result) bool { return s.failed > 0 })
	list("failed and passed", func(_ id, s result) bool { return s.failed > 0 && s.passed > 0 })
	for _, kind := range []string{"tests", "packages"} {
		fmt.Fprintf(&b, "slowest %s:\n", kind)
		those := slices.DeleteFunc(slices.Clone(ids), func(i id) bool {
			return (i.test == "") != (kind == "packages") || strings.Contains(i.test, "/")
		})
		slices.SortStableFunc(those, func(a, b id) int { return cmp.Compare(r.results[b].longest, r.results[a].longest) })
		for _, i := range those[:min(slowest, len(those))] {
			fmt.Fprintf(&b, "  %8.2fs %v\n", r.results[i].longest.Seconds(), i)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
