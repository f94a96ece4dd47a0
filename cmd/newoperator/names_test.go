package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlural(t *testing.T) {
	for noun, want := range map[string]string{
		"Shop": "Shops", "Policy": "Policies", "Bus": "Buses", "Day": "Days", "Box": "Boxes", "Branch": "Branches", "Mesh": "Meshes",
		"DNSRecord": "DNSRecords", "DNS": "DNSes", "API": "APIs", "Y": "Ys", "Key": "Keys", "HTTPProxy": "HTTPProxies", "Website": "Websites",
	} {
		if got := plural(noun); got != want {
			t.Errorf("plural(%q) = %q, want %q", noun, got, want)
		}
	}
}

// TestArguments: an error names the argument and the cure, and no folder is made.
func TestArguments(t *testing.T) {
	existing, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args      []string // FOLDER is a new folder
		noRelease bool
		want      string
	}{
		"none":                 {nil, false, "0 arguments, and 4 are required"},
		"three":                {[]string{"FOLDER", "example.com/shop", "Shop"}, false, "3 arguments, and 4 are required"},
		"five":                 {[]string{"FOLDER", "example.com/shop", "Shop", "shop.example.com", "x"}, false, "5 arguments, and 4 are required"},
		"flag after":           {[]string{"FOLDER", "example.com/shop", "Shop", "shop.example.com", "-plural=shops"}, false, "after the flags"},
		"unknown flag":         {[]string{"-module=x"}, false, "flag provided but not defined: -module: newoperator -help lists the flags"},
		"folder empty":         {[]string{"", "example.com/shop", "Shop", "shop.example.com"}, false, "FOLDER is empty: use"},
		"folder newline":       {[]string{"FOLDER\nx", "example.com/shop", "Shop", "shop.example.com"}, false, "has a control character: use another name"},
		"folder exists":        {[]string{existing, "example.com/shop", "Shop", "shop.example.com"}, false, "exists: use a new folder"},
		"folder is a file":     {[]string{file, "example.com/shop", "Shop", "shop.example.com"}, false, "exists: use a new folder"},
		"folder below a file":  {[]string{filepath.Join(file, "shop"), "example.com/shop", "Shop", "shop.example.com"}, false, "cannot be made: use a folder below one in which you may write"},
		"module empty":         {[]string{"FOLDER", "", "Shop", "shop.example.com"}, false, `MODULE "" is not valid: use`},
		"module parent":        {[]string{"FOLDER", "../x", "Shop", "shop.example.com"}, false, `MODULE "../x" is not valid: use`},
		"module parent inside": {[]string{"FOLDER", "example.com/../x", "Shop", "shop.example.com"}, false, "MODULE"},
		"module absolute":      {[]string{"FOLDER", "/example.com/x", "Shop", "shop.example.com"}, false, "MODULE"},
		"module slash":         {[]string{"FOLDER", "example.com/x/", "Shop", "shop.example.com"}, false, "MODULE"},
		"module space":         {[]string{"FOLDER", "example.com/my shop", "Shop", "shop.example.com"}, false, "MODULE"},
		"module newline":       {[]string{"FOLDER", "example.com/shop\nreplace", "Shop", "shop.example.com"}, false, "MODULE"},
		"module newline last":  {[]string{"FOLDER", "example.com/shop\n", "Shop", "shop.example.com"}, false, "MODULE"},
		"module no domain":     {[]string{"FOLDER", "net/http", "Shop", "shop.example.com"}, false, "begins with a domain"},
		"module version":       {[]string{"FOLDER", "example.com/shop@v1", "Shop", "shop.example.com"}, false, "MODULE"},
		"module v1":            {[]string{"FOLDER", "example.com/shop/v1", "Shop", "shop.example.com"}, false, "leave out the version"},
		"module ours":          {[]string{"FOLDER", library + "/x", "Shop", "shop.example.com"}, false, "belongs to the library"},
		"kind lower":           {[]string{"FOLDER", "example.com/shop", "shop", "shop.example.com"}, false, `KIND "shop" is not valid: use`},
		"kind space":           {[]string{"FOLDER", "example.com/shop", "My Shop", "shop.example.com"}, false, "KIND"},
		"kind newline":         {[]string{"FOLDER", "example.com/shop", "Shop\n", "shop.example.com"}, false, "KIND"},
		"kind underscore":      {[]string{"FOLDER", "example.com/shop", "My_Shop", "shop.example.com"}, false, "KIND"},
		"kind not ASCII":       {[]string{"FOLDER", "example.com/shop", "Café", "shop.example.com"}, false, "KIND"},
		"kind long":            {[]string{"FOLDER", "example.com/shop", strings.Repeat("S", 55), "shop.example.com"}, false, "at most 54"},
		"kind declared":        {[]string{"FOLDER", "example.com/shop", "Resource", "shop.example.com"}, false, "such as CloudResource"},
		"group upper":          {[]string{"FOLDER", "example.com/shop", "Shop", "Shop.example.com"}, false, `GROUP "Shop.example.com" is not valid: use`},
		"group word":           {[]string{"FOLDER", "example.com/shop", "Shop", "shop"}, false, "GROUP"},
		"group space":          {[]string{"FOLDER", "example.com/shop", "Shop", "shop .example.com"}, false, "GROUP"},
		"group newline":        {[]string{"FOLDER", "example.com/shop", "Shop", "shop.example.com\n"}, false, "GROUP"},
		"group dash":           {[]string{"FOLDER", "example.com/shop", "Shop", "shop-.example.com"}, false, "GROUP"},
		"group long":           {[]string{"FOLDER", "example.com/shop", "Shop", strings.Repeat("s", 60) + ".com"}, false, "at most 63"},
		"group reserved":       {[]string{"FOLDER", "example.com/shop", "Shop", "shop.k8s.io"}, false, "reserved for Kubernetes: use"},
		"group of Kubernetes":  {[]string{"FOLDER", "example.com/shop", "Shop", "kubernetes.io"}, false, "reserved for Kubernetes: use"},
		"plural upper":         {[]string{"-plural=Shops", "FOLDER", "example.com/shop", "Shop", "shop.example.com"}, false, `-plural "Shops" is not valid: use`},
		"plural path":          {[]string{"-plural=a/b", "FOLDER", "example.com/shop", "Shop", "shop.example.com"}, false, "-plural"},
		"plural newline":       {[]string{"-plural=shops\n", "FOLDER", "example.com/shop", "Shop", "shop.example.com"}, false, "-plural"},
		"name upper":           {[]string{"-name=Shop", "FOLDER", "example.com/shop", "Shop", "shop.example.com"}, false, `-name "Shop" is not valid: use`},
		"name long":            {[]string{"-name=" + strings.Repeat("s", 55), "FOLDER", "example.com/shop", "Shop", "shop.example.com"}, false, "at most 54"},
		"library absent":       {[]string{"-library=" + existing, "FOLDER", "example.com/shop", "Shop", "shop.example.com"}, false, "is not a folder with a go.mod: use a checkout of"},
		"library another":      {[]string{"-library=../../controlplane", "FOLDER", "example.com/shop", "Shop", "shop.example.com"}, false, "has another module: use a checkout of"},
		"no release":           {[]string{"FOLDER", "example.com/shop", "Shop", "shop.example.com"}, true, "is not a release: use go run " + library + "/cmd/newoperator@latest, or -library"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			args := make([]string, len(test.args))
			for i, arg := range test.args {
				args[i] = strings.Replace(arg, "FOLDER", filepath.Join(parent, "shop"), 1)
			}
			version := "v1.2.3"
			if test.noRelease {
				version = ""
			}
			var out strings.Builder
			if err := run(t.Context(), args, version, &out, &out); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("run(%q) = %v, want an error with %q", args, err, test.want)
			}
			if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
				t.Errorf("run left %v, %v", left, err)
			}
		})
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "mine" {
		t.Errorf("the file of another has %q, %v", data, err)
	}
}

// TestFolder: a path that leads up, or ends with a separator, is that of a new folder.
func TestFolder(t *testing.T) {
	t.Setenv("GOPROXY", "off") // so that run ends after the files
	t.Setenv("GOFLAGS", "-mod=mod")
	parent := t.TempDir()
	for _, folder := range []string{"../up", "slash" + string(filepath.Separator), "a/../b", "deep/er/shop", "with space", "é"} {
		work := filepath.Join(parent, "work")
		if err := os.MkdirAll(work, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Chdir(work)
		var out strings.Builder
		err := run(t.Context(), []string{folder, "example.com/shop", "Shop", "shop.example.com"}, "v0.0.987654", &out, &out)
		if err == nil || !strings.Contains(err.Error(), filepath.Clean(folder)+" has all files, but its go.mod is not complete") {
			t.Errorf("run() with the folder %q = %v", folder, err)
		}
		if _, err := os.Stat(filepath.Join(work, folder, "controller", "controller.go")); err != nil {
			t.Error(err)
		}
	}
}

func TestHelp(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-help"}, "", &out, &out); err != nil || out.String() != usage {
		t.Errorf("run(-help) = %v, %q", err, out.String())
	}
}
