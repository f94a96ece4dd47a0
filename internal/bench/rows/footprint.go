package rows

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// Figures of the rows.
const (
	imported        = "packages"
	importedModules = "modules"
	binaryBytes     = "B of binary"
)

const (
	ourModule        = "github.com/controllerkit/controllerkit"
	clientGoModule   = "k8s.io/client-go"
	controllerModule = "sigs.k8s.io/controller-runtime"
)

const programMinimal = "minimal"

// counterparts has what is imported instead of a package.
var counterparts = []struct{ ours, theirs string }{
	{"operator", controllerModule},
	{"operator", clientGoModule + "/informers"},
	{"queue", clientGoModule + "/util/workqueue"},
	{"queue", controllerModule + "/pkg/controller/priorityqueue"},
	{"enqueue", clientGoModule + "/tools/cache"},
	{"enqueue", controllerModule + "/pkg/handler"},
	{"reconcile", controllerModule + "/pkg/controller"},
	{"leader", clientGoModule + "/tools/leaderelection"},
	{"informer", clientGoModule + "/informers"},
	{"informer", controllerModule + "/pkg/cache"},
	{"informer/ondemand", clientGoModule + "/informers"},
	{"informer/scope", controllerModule + "/pkg/cache"},
	{"watcher", clientGoModule + "/tools/watch"},
	{"crd", clientGoModule + "/dynamic"},
	{"crd", controllerModule + "/pkg/client"},
	{"finalizer", controllerModule + "/pkg/controller/controllerutil"},
	{"owner", controllerModule + "/pkg/controller/controllerutil"},
	{"status", controllerModule + "/pkg/client"},
	{"ssa", controllerModule + "/pkg/client"},
	{"recorder", clientGoModule + "/tools/events"},
	{"shutdown", controllerModule + "/pkg/manager"},
	{"metrics", controllerModule + "/pkg/metrics"},
	{"controllertest", controllerModule + "/pkg/envtest"},
}

func init() {
	bench.Register(bench.Row{
		Name: "footprint/package",
		About: "What an import adds to a program: the packages outside the standard library, and the modules that they come from. The rivals are the packages that " +
			"are used instead. They need not do the same: see README.md.",
		Op:    "import",
		Goals: []bench.Goal{{Figure: imported, Rival: controllerRuntime, AtMost: 1}},
		Pairs: packagePairs,
	})
	bench.Register(bench.Row{
		Name: "footprint/binary",
		About: "Programs as files, built without symbols (-ldflags=-s -w). Typed clients: the programs of operator/process, of which client-go's has no metrics, election or " +
			"probes. Package crd: a program without generated clients, with all of them.",
		Op:    "program",
		Goals: []bench.Goal{{Figure: binaryBytes, Rival: controllerRuntime, AtMost: 0.6}},
		Pairs: binaryPairs,
	})
}

func packagePairs(ctx context.Context) (pairs []bench.Pair, _ func(), _ error) {
	paths := map[string]bool{}
	for _, c := range counterparts {
		paths[ourModule+"/"+c.ours], paths[c.theirs] = true, true
	}
	packages, err := listed(ctx, paths)
	if err != nil {
		return nil, nil, err
	}
	contender := func(name, module, path string) bench.Contender {
		return bench.Contender{Name: name, Module: module, Run: func(_ context.Context, m *bench.Meter) (int, error) {
			n, modules := closure(packages, path)
			m.Count(imported, float64(n))
			m.Count(importedModules, float64(modules))
			return 1, nil
		}}
	}
	for _, c := range counterparts {
		name, module := clientGo, clientGoModule
		if strings.HasPrefix(c.theirs, controllerModule) {
			name, module = controllerRuntime, controllerModule
		}
		pairs = append(pairs, bench.Pair{
			Case:   fmt.Sprintf("%s, beside %s", c.ours, c.theirs),
			Ours:   contender("controllerkit", "", ourModule+"/"+c.ours),
			Theirs: contender(name, module, c.theirs),
		})
	}
	return pairs, nil, nil
}

// listing is a package as the command go list shows it.
type listing struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Module     *struct{ Path string }
}

// listed returns the packages with these paths, and all that they import.
func listed(ctx context.Context, paths map[string]bool) (map[string]listing, error) {
	root, err := repository()
	if err != nil {
		return nil, err
	}
	args := []string{"list", "-C", filepath.Join(root, "internal", "bench"), "-deps", "-json=ImportPath,Standard,Imports,Module"}
	for path := range paths {
		args = append(args, path)
	}
	var failure bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, failure.String())
	}
	packages := map[string]listing{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listing
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages[l.ImportPath] = l
	}
}

// closure counts the packages that are not of the standard library among a package and all
// that it imports, and their modules.
func closure(packages map[string]listing, path string) (n, modules int) {
	seen, from := map[string]bool{}, map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		p := packages[path]
		if seen[path] || p.Standard || p.ImportPath == "" {
			return
		}
		seen[path] = true
		if p.Module != nil {
			from[p.Module.Path] = true
		}
		for _, i := range p.Imports {
			visit(i)
		}
	}
	visit(path)
	return len(seen), len(from)
}

func binaryPairs(ctx context.Context) ([]bench.Pair, func(), error) {
	dir, err := buildPrograms(ctx, filepath.Join("internal", "bench"), "bench-stripped", []string{"./programs/..."}, "-ldflags=-s -w")
	if err != nil {
		return nil, nil, err
	}
	sizes := map[string]int64{}
	for _, program := range []string{programOperator, programMinimal, programRuntime, programClientGo} {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil {
			return nil, nil, err
		}
		sizes[program] = info.Size()
	}
	contender := func(name, module, program string) bench.Contender {
		return bench.Contender{Name: name, Module: module, Run: func(_ context.Context, m *bench.Meter) (int, error) {
			m.Count(binaryBytes, float64(sizes[program]))
			return 1, nil
		}}
	}
	typed, minimal := contender("operator", "", programOperator), contender("minimal", "", programMinimal)
	runtime := contender(controllerRuntime, controllerModule, programRuntime)
	return []bench.Pair{
		{Case: "typed clients", Ours: typed, Theirs: runtime},
		{Case: "typed clients", Ours: typed, Theirs: contender(clientGo, clientGoModule, programClientGo)},
		{Case: "package crd", Ours: minimal, Theirs: runtime},
	}, nil, nil
}
