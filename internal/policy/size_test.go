package policy

import (
	"cmp"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The limits of a package: about what can be learned in an hour.
const (
	maxNames = 20   // exported functions, types, constants and variables; a group of constants of one type counts as the type
	maxLines = 1600 // lines with code, without tests and inner packages
)

// larger has the limits of packages that are one idea in more lines. A new entry needs a reason.
func larger() map[string]int {
	return map[string]int{
		"controllertest": 6200, // a test kit: one file for each kind of fault
		"managerkit":     2000, // an adapter of each package to controller-runtime
		"shard":          1900, // one protocol
		"ssa/applyset":   2400, // Batch and Set share the stages and the apply
	}
}

// TestSize holds that the packages stay small.
func TestSize(t *testing.T) {
	root(t)
	for _, name := range published() {
		p, _, _ := parsePackage(t, name)
		names := len(p.Funcs) + len(p.Types)
		for _, typ := range p.Types {
			names += len(typ.Funcs)
			for _, v := range typ.Vars {
				names += len(v.Names)
			}
		}
		for _, v := range append(p.Consts, p.Vars...) {
			names += len(v.Names)
		}
		lines := 0
		files, err := filepath.Glob(filepath.Join(name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				lines += codeLines(t, file)
			}
		}
		t.Logf("%-28s %3d names %5d lines", name, names, lines)
		most := cmp.Or(larger()[name], maxLines)
		if names > maxNames || lines > most {
			t.Errorf("package %s has %d names and %d lines of code, want at most %d and %d: it may be two ideas", name, names, lines, maxNames, most)
		}
	}
}

// codeLines returns the number of lines of a file that have code.
func codeLines(t *testing.T, path string) int {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	file := fset.AddFile(path, -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	with := map[int]bool{}
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return len(with)
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue
		}
		first := file.Line(pos)
		for n := range 1 + strings.Count(text, "\n") {
			with[first+n] = true
		}
	}
}
