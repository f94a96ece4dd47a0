// Command newoperator writes the repository of a new operator: a custom resource, its controller,
// tests, manifests, a Makefile and a workflow. It needs Go alone:
//
//	go run github.com/controllerkit/controllerkit/cmd/newoperator@latest FOLDER MODULE KIND GROUP
//	go run github.com/controllerkit/controllerkit/cmd/newoperator@latest shop example.com/shop Shop shop.example.com
//
// FOLDER is new. The repository is the website example of this library under the other names, and
// requires the version of the library that the command has. Before the arguments can stand:
//
//	-plural NAME      the plural of the kind in lower case; the default is by the English rule
//	-name NAME        the names in a cluster, such as NAME-operator; the default is the kind
//	-library FOLDER   use the checkout of controllerkit in FOLDER instead of a release
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

const (
	library   = "github.com/controllerkit/controllerkit"
	goVersion = "1.26.0" // of the library's go.mod
)

const usage = `usage: newoperator [-plural NAME] [-name NAME] [-library FOLDER] FOLDER MODULE KIND GROUP

newoperator writes the repository of an operator into the new folder FOLDER, for example:

	go run ` + library + `/cmd/newoperator@latest shop example.com/shop Shop shop.example.com

MODULE is its Go module, KIND its kind, and GROUP the API group of the kind.

  -plural NAME      the plural of the kind in lower case; the default is by the English rule
  -name NAME        the names in a cluster, such as NAME-operator; the default is the kind
  -library FOLDER   use the checkout of controllerkit in FOLDER instead of a release
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	info, _ := debug.ReadBuildInfo()
	err := run(ctx, os.Args[1:], release(info), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "newoperator:", err)
		os.Exit(1)
	}
}

// release returns the version of this program, or "" if it was built in a checkout. Only a module
// that the go command has downloaded has a sum.
func release(info *debug.BuildInfo) string {
	if info == nil || info.Main.Path != library || info.Main.Sum == "" {
		return ""
	}
	return info.Main.Version
}

// A request has the checked arguments.
type request struct {
	folder   string
	names    names
	version  string // of the library
	checkout string // the folder of the library, or "" to download it
}

// parse returns the request of args, or flag.ErrHelp. version is that of a release, or "".
func parse(args []string, version string) (r request, err error) {
	flags := flag.NewFlagSet("newoperator", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error has it
	flags.StringVar(&r.names.plural, "plural", "", "")
	flags.StringVar(&r.names.name, "name", "", "")
	flags.StringVar(&r.checkout, "library", "", "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return r, err
	case err != nil:
		return r, fmt.Errorf("%w: newoperator -help lists the flags", err)
	case flags.NArg() != 4:
		return r, fmt.Errorf("%d arguments, and 4 are required, after the flags\n%s", flags.NArg(), usage)
	}
	if r.folder, err = checkFolder(flags.Arg(0)); err != nil {
		return r, err
	}
	r.names.module, r.names.kind, r.names.group = flags.Arg(1), flags.Arg(2), flags.Arg(3)
	if r.names, err = r.names.check(); err != nil {
		return r, err
	}
	switch r.version = version; {
	case r.checkout != "":
		r.version = "v0.0.0"
		r.checkout, err = checkLibrary(r.checkout)
	case version == "":
		err = fmt.Errorf("this build of the command is not a release: use go run %s/cmd/newoperator@latest, or -library with the folder of a checkout", library)
	}
	return r, err
}

// run writes the repository. It requires version, the release of this program, unless args have -library.
func run(ctx context.Context, args []string, version string, stdout, stderr io.Writer) error {
	r, err := parse(args, version)
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("the go command is not found: add the folder bin of the Go installation to PATH: %w", err)
	}
	files, err := render(r.names)
	if err != nil {
		return err
	}
	files["go.mod"] = fmt.Sprintf("module %s\n\ngo %s\n\nrequire %s %s\n", r.names.module, goVersion, library, r.version)
	if r.checkout != "" { // its sums are enough without a network
		sums, err := os.ReadFile(filepath.Join(r.checkout, "go.sum"))
		if err != nil {
			return fmt.Errorf("-library: %w", err)
		}
		files["go.sum"] = string(sums)
	}
	if err := write(r.folder, files); err != nil {
		return err
	}
	if err := r.require(ctx, stderr); err != nil {
		return err
	}
	if err := initGit(ctx, r.folder, stdout, stderr); err != nil {
		return fmt.Errorf("%w\n%s is complete, but is not a git repository: run git init in it", err, r.folder)
	}
	fmt.Fprintf(stdout, "%s has the operator of the kind %s. Next: cd %q && go test -timeout 30m ./...\n", r.folder, r.names.kind, r.folder)
	if r.checkout == "" {
		fmt.Fprintln(stdout, "The first run of the tests compiles their API server, which takes minutes.")
	} else {
		fmt.Fprintf(stdout, "The tests need their API server: run make bin/controlplane in %s, and set CONTROLPLANE=%s.\n", r.checkout, filepath.Join(r.checkout, "bin", "controlplane"))
	}
	fmt.Fprintln(stdout, "Then change api/v1/types.go and controller/controller.go: AGENTS.md has the rules.")
	return nil
}

// require completes the go.mod of the folder.
func (r request) require(ctx context.Context, stderr io.Writer) error {
	if r.checkout != "" {
		if err := command(ctx, r.folder, stderr, "go", "mod", "edit", "-replace="+library+"="+r.checkout); err != nil {
			return fmt.Errorf("%w\n%s has all files, but its go.mod does not use the folder of -library: add a replace to it, and run go mod tidy", err, r.folder)
		}
	}
	if err := command(ctx, r.folder, stderr, "go", "mod", "tidy"); err != nil {
		return fmt.Errorf("%w\n%s has all files, but its go.mod is not complete. go mod tidy downloads modules: check the network and the variable GOPROXY, which is %s. Then run go mod tidy in %s",
			err, r.folder, goEnv(context.WithoutCancel(ctx), "GOPROXY"), r.folder)
	}
	return nil
}

// checkLibrary returns the absolute path of a checkout of the library.
func checkLibrary(folder string) (string, error) {
	data, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("-library %q is not a folder with a go.mod: use a checkout of %s: %w", folder, library, err)
	}
	if first, _, _ := strings.Cut(string(data), "\n"); strings.TrimSpace(first) != "module "+library {
		return "", fmt.Errorf("-library %q has another module: use a checkout of %s", folder, library)
	}
	return filepath.Abs(folder)
}

// write writes the files into a new folder. It changes no file that exists.
func write(folder string, files map[string]string) error {
	if err := os.MkdirAll(filepath.Dir(folder), 0o777); err != nil {
		return fmt.Errorf("FOLDER %q cannot be made: use a folder below one in which you may write: %w", folder, err)
	}
	if err := os.Mkdir(folder, 0o777); errors.Is(err, os.ErrExist) {
		return fmt.Errorf("FOLDER %q exists: use a new folder", folder)
	} else if err != nil {
		return fmt.Errorf("FOLDER %q cannot be made: use a folder below one in which you may write: %w", folder, err)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		name := filepath.Join(folder, filepath.FromSlash(path))
		err := os.MkdirAll(filepath.Dir(name), 0o777)
		if err == nil {
			err = os.WriteFile(name, []byte(files[path]), 0o666)
		}
		if err != nil {
			return fmt.Errorf("%w\n%s has only some of the files: remove it, and run newoperator again", err, folder)
		}
	}
	return nil
}

// initGit makes the folder a git repository, if there is git and the folder is not in one.
func initGit(ctx context.Context, folder string, stdout, stderr io.Writer) error {
	if git, _ := exec.LookPath("git"); git == "" {
		fmt.Fprintf(stdout, "git is not installed, so %s is not a git repository.\n", folder)
		return nil
	}
	if command(ctx, folder, io.Discard, "git", "rev-parse", "--is-inside-work-tree") == nil {
		fmt.Fprintf(stdout, "%s is part of the git repository around it.\n", folder)
		return nil
	}
	return command(ctx, folder, stderr, "git", "init", "--quiet")
}

// command runs a program in a folder, with its output to w.
func command(ctx context.Context, folder string, w io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOWORK=off") // a go.work above does not list the folder
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// goEnv returns a setting of the go command.
func goEnv(ctx context.Context, name string) string {
	out, err := exec.CommandContext(ctx, "go", "env", name).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
