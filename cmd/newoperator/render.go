package main

import (
	"embed"
	"fmt"
	"go/format"
	"io/fs"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/examples"
)

// template has the files that the website example lacks, or has in another form.
//
//go:embed all:template
var template embed.FS

// replacer returns the replacement of the names of the website example. It makes one pass, so a
// new name may contain an old one.
func replacer(n names) *strings.Replacer {
	lower := strings.ToLower(n.kind)
	article := " a "
	if strings.ContainsAny(n.kind[:1], "AEIO") {
		article = " an "
	}
	return strings.NewReplacer(
		library+"/examples/website", n.module,
		" a Website", article+n.kind,
		" a website", article+lower,
		"web.example.com", n.group,
		"website-operator", n.name+"-operator",
		"website-system", n.name+"-system",
		"Websites", n.plurals,
		"websites", n.plural,
		"Website", n.kind,
		"website", lower,
	)
}

// render returns the files of an operator by their paths, which have slashes.
func render(n names) (map[string]string, error) {
	renamed := replacer(n)
	files := map[string]string{}
	if err := add(files, examples.Website, "website", renamed); err != nil {
		return nil, err
	}
	// The tests of the library start its API server. Those of the repository find one by themselves.
	delete(files, "controller/server_test.go")
	return files, add(files, template, "template", renamed)
}

// add adds the files below a folder to files.
func add(files map[string]string, source fs.FS, folder string, renamed *strings.Replacer) error {
	return fs.WalkDir(source, folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(source, path)
		if err != nil {
			return err
		}
		path = strings.TrimPrefix(path, folder+"/")
		// git can check files out with carriage returns on Windows.
		text := renamed.Replace(strings.ReplaceAll(string(data), "\r\n", "\n"))
		if files[path], err = formatted(path, text); err != nil {
			return fmt.Errorf("format %s: %w", path, err)
		}
		return nil
	})
}

// formatted returns a file in the form that its generator gives it. With other names, imports
// have another order, for example.
func formatted(path, text string) (string, error) {
	switch {
	case strings.HasSuffix(path, ".go"):
		out, err := format.Source([]byte(text))
		return string(out), err
	case path == "config/crd.yaml" || path == "config/rbac.yaml":
		return manifests(text)
	}
	return text, nil
}

// manifests returns generated manifests, whose first line is not part of an object, with the
// rules of roles and the ends of lines as their generators write them.
func manifests(text string) (string, error) {
	first, rest, _ := strings.Cut(text, "\n")
	documents := strings.Split(rest, "\n---\n")
	for i, document := range documents {
		var obj map[string]any
		if err := yaml.Unmarshal([]byte(document), &obj); err != nil {
			return "", err
		}
		if rules, ok := obj["rules"].([]any); ok {
			slices.SortStableFunc(rules, func(a, b any) int { return strings.Compare(apiGroup(a), apiGroup(b)) })
		}
		out, err := yaml.Marshal(obj)
		if err != nil {
			return "", err
		}
		documents[i] = string(out)
	}
	return first + "\n" + strings.Join(documents, "---\n"), nil
}

// apiGroup returns the first API group of a rule.
func apiGroup(rule any) string {
	fields, _ := rule.(map[string]any)
	groups, _ := fields["apiGroups"].([]any)
	if len(groups) == 0 {
		return ""
	}
	group, _ := groups[0].(string)
	return group
}
