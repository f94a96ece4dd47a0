package main

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// root returns the folder of this checkout.
func root(t *testing.T) string {
	t.Helper()
	dir, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// do runs a program in a folder, and returns its output.
func do(t *testing.T, folder, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestServerRepository makes a repository and runs its tests, which include an exploration on the API server.
func TestServerRepository(t *testing.T) {
	testserver.Needed(t)
	server, err := testserver.Binary()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(controllertest.ServerVariable, server)
	folder := filepath.Join(t.TempDir(), "a b", "shop") // a path with a space
	var out bytes.Buffer
	// The group is before apps, so the rules have another order than those of the example.
	if err := run(t.Context(), []string{"-library", root(t), folder, "example.com/shop", "Policy", "a.example.com"}, "", &out, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "has the operator of the kind Policy") || !strings.Contains(out.String(), "CONTROLPLANE=") {
		t.Errorf("the command printed %q", out.String())
	}
	if module := do(t, folder, "go", "list", "-m"); module != "example.com/shop\n" {
		t.Errorf("the module is %q", module)
	}
	t.Log(do(t, folder, "go", "vet", "./..."))
	t.Log(do(t, folder, "go", "test", "-vet=off", "./..."))
	if out := do(t, folder, "git", "status", "--porcelain", "--ignored"); strings.Contains(out, "!!") || !strings.Contains(out, "?? go.mod\n") {
		t.Errorf("git status: %s", out)
	}
}

// TestRepositories makes repositories with other names, compiles them with their tests, and runs those of the
// longest names that need no server.
func TestRepositories(t *testing.T) {
	for name, args := range map[string][]string{
		"acronym": {"example.com/dns/v2", "DNSRecord", "dns.example.com"},
		"same":    {"github.com/example/website", "Website", "web.example.com"},
		"plural":  {"example.com/farm", "Sheep", "farm.example.com"},
		"long":    {"example.com/long", "K" + strings.Repeat("k", maxKind-1), strings.Repeat("g", maxGroup-4) + ".com"},
	} {
		if testing.Short() && name != "same" {
			continue // each compiles a repository
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := filepath.Join(t.TempDir(), "new")
			flags := []string{"-library", root(t)}
			if name == "plural" {
				flags = append(flags, "-plural", "sheep", "-name", "barn")
			}
			var out bytes.Buffer
			if err := run(t.Context(), append(append(flags, folder), args...), "v1.2.3", &out, &out); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			do(t, folder, "go", "vet", "./...")
			if name == "long" {
				do(t, folder, "go", "test", "-short", "-vet=off", "./controller")
			}
		})
	}
}

// TestGoVersion: the repositories have the Go version of the library.
func TestGoVersion(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "\ngo "+goVersion+"\n") {
		t.Errorf("the library's go.mod has another version than go %s", goVersion)
	}
}

// TestRelease: a repository requires the version of a command that the go command has downloaded, and no other.
func TestRelease(t *testing.T) {
	for name, test := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"none":           {nil, ""},
		"go run ./":      {&debug.BuildInfo{Main: debug.Module{Path: library, Version: "(devel)"}}, ""},
		"go build ./":    {&debug.BuildInfo{Main: debug.Module{Path: library, Version: "v0.0.0-20260102030405-abcdefabcdef+dirty"}}, ""},
		"go run @v1.2.3": {&debug.BuildInfo{Main: debug.Module{Path: library, Version: "v1.2.3", Sum: "h1:x"}}, "v1.2.3"},
		"fork":           {&debug.BuildInfo{Main: debug.Module{Path: "example.com/fork", Version: "v1.2.3", Sum: "h1:x"}}, ""},
	} {
		if got := release(test.info); got != test.want {
			t.Errorf("%s: release() = %q, want %q", name, got, test.want)
		}
	}
}

// TestExistingFolder: an existing folder, also one made in the last moment, loses nothing.
func TestExistingFolder(t *testing.T) {
	folder := t.TempDir()
	own := filepath.Join(folder, "main.go")
	if err := os.WriteFile(own, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(folder, map[string]string{"main.go": "package main"}); err == nil || !strings.Contains(err.Error(), "exists: use a new folder") {
		t.Errorf("write() = %v, want an error with the cure", err)
	}
	if data, err := os.ReadFile(own); err != nil || string(data) != "mine" {
		t.Errorf("the file has %q, %v", data, err)
	}
	if err := os.Symlink(filepath.Join(folder, "absent"), filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	if err := write(filepath.Join(folder, "link"), nil); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("write() to a symbolic link = %v", err)
	}
}

// TestUnfinished: after a failure in the middle, the error tells what is there and what to do.
func TestUnfinished(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "shop")
	err := write(folder, map[string]string{"a": "a file", "a/b": "and a folder"})
	if err == nil || !strings.Contains(err.Error(), folder+" has only some of the files: remove it, and run newoperator again") {
		t.Errorf("write() = %v", err)
	}

	folder = filepath.Join(t.TempDir(), "shop")
	t.Setenv("GOPROXY", "off") // no network
	t.Setenv("GOFLAGS", "-mod=mod")
	var out bytes.Buffer
	err = run(t.Context(), []string{folder, "example.com/shop", "Shop", "shop.example.com"}, "v0.0.987654", &out, &out)
	if err == nil || !strings.Contains(err.Error(), "go mod tidy: exit status 1\n"+folder+" has all files, but its go.mod is not complete") ||
		!strings.Contains(err.Error(), "check the network and the variable GOPROXY, which is off. Then run go mod tidy in "+folder) {
		t.Errorf("run() without a network = %v", err)
	}
	if !strings.Contains(out.String(), "GOPROXY=off") {
		t.Errorf("the output lacks that of the go command: %s", out.String())
	}
	if data, err := os.ReadFile(filepath.Join(folder, "go.mod")); err != nil || string(data) != "module example.com/shop\n\ngo 1.26.0\n\nrequire "+library+" v0.0.987654\n" {
		t.Errorf("go.mod = %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(folder, "controller", "controller.go")); err != nil {
		t.Error(err)
	}
}

// TestUnwritable: the error about a folder without the right to write has the cure.
func TestUnwritable(t *testing.T) {
	parent := t.TempDir()
	if err := os.Chmod(parent, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(parent, "probe"), 0o700); err == nil {
		t.Skip("this user may write everywhere; TestArguments has another folder that cannot be made")
	}
	if err := write(filepath.Join(parent, "shop"), nil); err == nil || !strings.Contains(err.Error(), "use a folder below one in which you may write") {
		t.Errorf("write() = %v", err)
	}
}

// TestGit: without git and in a git repository, one line tells it.
func TestGit(t *testing.T) {
	goBin := filepath.Join(strings.TrimSpace(do(t, ".", "go", "env", "GOROOT")), "bin")
	parent := t.TempDir()
	do(t, parent, "git", "init", "--quiet")
	path := os.Getenv("PATH")
	for name, test := range map[string]struct{ path, parent, want string }{
		"no git":     {goBin, t.TempDir(), "git is not installed, so FOLDER is not a git repository.\n"},
		"repository": {path, parent, "FOLDER is part of the git repository around it.\n"},
		"new":        {path, t.TempDir(), "FOLDER has the operator of the kind Shop."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", test.path)
			folder := filepath.Join(test.parent, "shop")
			var out bytes.Buffer
			if err := run(t.Context(), []string{"-library", root(t), folder, "example.com/shop", "Shop", "shop.example.com"}, "", &out, &out); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if got := strings.ReplaceAll(out.String(), folder, "FOLDER"); !strings.HasPrefix(got, test.want) {
				t.Errorf("the command printed %q, want %q", got, test.want)
			}
			if _, err := os.Stat(filepath.Join(folder, ".git")); (err == nil) != (name == "new") {
				t.Errorf(".git: %v", err)
			}
		})
	}
}

// TestMakefile runs the targets for a cluster with a kubectl that prints its arguments and its input.
func TestMakefile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the kubectl of this test is a shell script")
	}
	folder := filepath.Join(t.TempDir(), "shop")
	files, err := render(checked(t, names{module: "example.com/shop", kind: "Shop", group: "shop.example.com"}))
	if err == nil {
		err = write(folder, files)
	}
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join(folder, "tool")
	script := `#!/bin/sh
echo "CALL $*" >&2
case "$*" in
kustomize*) cat config/rbac.yaml; echo ---; sed "s|$FROM|$TO|" config/deployment.yaml;;
apply*) cat;;
'get clusterrole '*) echo "$ROLE";;
'get crd '*) echo $CRD;;
get*) [ -n "$CRD" ] && echo $LEFT;;
'-n shop-system get '*) printf '%s\n' deployment.apps/shop-operator $OTHERS;;
esac
`
	if err := os.WriteFile(tool, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	mk := func(env []string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "make", append(args, "KUBECTL="+tool, "DOCKER="+tool)...)
		cmd.Dir = folder
		cmd.Env = append(append(os.Environ(), "FROM=shop-operator:latest", "MAKEFLAGS="), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	own := liveRole(t, files)
	for _, test := range []struct {
		gone   bool   // the CustomResourceDefinition
		left   string // objects
		image  string // in the user's config/deployment.yaml
		role   string // the ClusterRole in the cluster
		others string // what is in the Namespace
		args   []string
		want   []string
		fail   bool
	}{
		{args: nil, want: []string{"build      compile the operator", "undeploy   delete all"}},
		{args: []string{"image", "IMAGE=r.example.com/shop:v1"}, want: []string{"CALL build -t r.example.com/shop:v1 ."}},
		{args: []string{"deploy", "IMAGE=r.example.com/shop:v1"}, want: []string{"CALL kustomize config", "CALL get clusterrole shop-operator --ignore-not-found", "CALL apply --server-side -f -", "        image: r.example.com/shop:v1\n"}},
		{args: []string{"deploy"}, want: []string{"        image: shop-operator:latest\n"}},
		{args: []string{"deploy"}, role: own, want: []string{"        image: shop-operator:latest\n"}},
		{args: []string{"deploy"}, role: "shop-operator shops", want: []string{"the ClusterRole shop-operator in the cluster is not about shops.shop.example.com: if another operator has these names, replace shop-operator and shop-system"}, fail: true},
		{args: []string{"deploy", "IMAGE=r.example.com/shop:v2"}, image: "r.example.com/shop:v1", want: []string{"config has no image shop-operator:latest, which r.example.com/shop:v2 would replace: write it"}, fail: true},
		{args: []string{"undeploy"}, gone: true, want: []string{"CALL delete --ignore-not-found -k config"}},
		{args: []string{"undeploy"}, role: own, want: []string{"CALL get shops.shop.example.com --all-namespaces -o name", "CALL -n shop-system get deployments,", "CALL delete --ignore-not-found -k config"}},
		{args: []string{"undeploy"}, left: "shop/blog", want: []string{"delete these first, while the operator runs: shop/blog"}, fail: true},
		{args: []string{"undeploy"}, role: "shop-operator ", want: []string{"the ClusterRole shop-operator in the cluster is not about shops.shop.example.com"}, fail: true},
		{args: []string{"undeploy"}, gone: true, others: "deployment.apps/bus-operator", want: []string{"the Namespace shop-system would be deleted", "delete these first: deployment/bus-operator\n"}, fail: true},
		{args: []string{"undeploy"}, others: "persistentvolumeclaim/data statefulset.apps/db", want: []string{"delete these first: persistentvolumeclaim/data statefulset/db\n"}, fail: true},
	} {
		crd := "customresourcedefinition.apiextensions.k8s.io/shops.shop.example.com"
		if test.gone {
			crd = ""
		}
		out, err := mk([]string{"CRD=" + crd, "LEFT=" + test.left, "ROLE=" + test.role, "OTHERS=" + test.others, "TO=" + cmp.Or(test.image, "shop-operator:latest")}, test.args...)
		if (err != nil) != test.fail {
			t.Errorf("make %v: %v\n%s", test.args, err, out)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("make %v printed %q, want %q", test.args, out, want)
			}
		}
		if test.fail && (strings.Contains(out, "CALL delete") || strings.Contains(out, "CALL apply")) {
			t.Errorf("make %v changed the cluster: %s", test.args, out)
		}
	}
}

// liveRole returns what kubectl prints with the JSONPath of the Makefile about the ClusterRole of the files. It
// checks that the line about the role of an operator of another group lacks the resources.
func liveRole(t *testing.T, files map[string]string) string {
	t.Helper()
	_, template, _ := strings.Cut(files["Makefile"], "--ignore-not-found -o 'jsonpath=")
	template, _, _ = strings.Cut(template, "'")
	path := jsonpath.New("role").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		t.Fatal(err)
	}
	lines := make([]string, 0, 2)
	for _, text := range []string{files["config/rbac.yaml"], strings.ReplaceAll(files["config/rbac.yaml"], "shop.example.com", "bus.example.com")} {
		for document := range strings.SplitSeq(text, "\n---\n") {
			var obj map[string]any
			if err := yaml.Unmarshal([]byte(document), &obj); err != nil {
				t.Fatal(err)
			}
			if obj["kind"] != "ClusterRole" {
				continue
			}
			var line strings.Builder
			if err := path.Execute(&line, obj); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, line.String())
		}
	}
	if want := []string{"shop-operator shops shops/finalizers shops/status", "shop-operator "}; !slices.Equal(lines, want) {
		t.Errorf("the JSONPath %s prints %q, want %q", template, lines, want)
	}
	return lines[0]
}
