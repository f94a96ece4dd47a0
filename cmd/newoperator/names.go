package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// names are those of an operator.
type names struct {
	module string // of Go
	kind   string
	plural string // of the kind, in lower case
	group  string // of the API
	name   string // of the operator in a cluster, before -operator and -system

	plurals string // the plural of the kind in texts, such as DNSRecords
}

// With longer names, the name of the operator, such as shop-operator, does not fit into a label, or
// the field manager, such as shop.example.com/shop-operator, has more than 128 characters.
const (
	maxKind  = 63 - len("-operator")
	maxGroup = 63
)

var (
	validModule = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+(/[A-Za-z0-9_-]([A-Za-z0-9._-]*[A-Za-z0-9_-])?)*$`)
	validKind   = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	validWord   = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)
	validGroup  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)
)

// check returns the names with the default of the plural, or an error about the first name that is
// not valid.
func (n names) check() (names, error) {
	switch {
	case !validModule.MatchString(n.module):
		return n, fmt.Errorf("MODULE %q is not valid: use a module path that begins with a domain, such as example.com/shop", n.module)
	case strings.HasSuffix(n.module, "/v0") || strings.HasSuffix(n.module, "/v1"):
		return n, fmt.Errorf("MODULE %q is not valid: leave out the version, which a path has from v2 on", n.module)
	case n.module == library || strings.HasPrefix(n.module, library+"/"):
		return n, fmt.Errorf("MODULE %q belongs to the library: use a path of your own, such as example.com/shop", n.module)
	case !validKind.MatchString(n.kind) || len(n.kind) > maxKind:
		return n, fmt.Errorf("KIND %q is not valid: use a name in CamelCase of at most %d ASCII letters and digits, such as Shop", n.kind, maxKind)
	case slices.Contains([]string{"GroupVersion", "Resource"}, n.kind):
		return n, fmt.Errorf("KIND %q is the name of another declaration of the package: use a longer name, such as Cloud%s", n.kind, n.kind)
	case !validGroup.MatchString(n.group) || len(n.group) > maxGroup:
		return n, fmt.Errorf("GROUP %q is not valid: use a DNS name in lower case of at most %d characters, such as shop.example.com", n.group, maxGroup)
	case strings.HasSuffix("."+n.group, ".k8s.io") || strings.HasSuffix("."+n.group, ".kubernetes.io"):
		return n, fmt.Errorf("GROUP %q is reserved for Kubernetes: use a DNS name of your own, such as shop.example.com", n.group)
	}
	if n.name == "" {
		n.name = strings.ToLower(n.kind)
	}
	if !validWord.MatchString(n.name) || len(n.name) > maxKind {
		return n, fmt.Errorf("-name %q is not valid: use a word in lower case of at most %d characters, such as shop", n.name, maxKind)
	}
	if n.plural == "" {
		n.plurals = plural(n.kind)
		n.plural = strings.ToLower(n.plurals)
		return n, nil
	}
	if !validWord.MatchString(n.plural) || len(n.plural) > 63 {
		return n, fmt.Errorf("-plural %q is not valid: use a word in lower case of at most 63 characters, such as shops", n.plural)
	}
	n.plurals = strings.ToUpper(n.plural[:1]) + n.plural[1:]
	return n, nil
}

// plural returns the plural of an English noun: Shops, Buses, Policies, Days.
func plural(noun string) string {
	lower := strings.ToLower(noun)
	for _, end := range []string{"s", "x", "z", "ch", "sh"} {
		if strings.HasSuffix(lower, end) {
			return noun + "es"
		}
	}
	if stem, ok := strings.CutSuffix(lower, "y"); ok && stem != "" && !strings.ContainsAny(stem[len(stem)-1:], "aeiou") {
		return noun[:len(noun)-1] + "ies"
	}
	return noun + "s"
}

// checkFolder returns the folder in a clean form, or an error if it cannot be a new one. Whether it can be made
// is known later.
func checkFolder(folder string) (string, error) {
	switch _, err := os.Lstat(folder); {
	case folder == "":
		return "", errors.New("FOLDER is empty: use the path of a new folder")
	case strings.ContainsFunc(folder, unicode.IsControl):
		return "", fmt.Errorf("FOLDER %q has a control character: use another name", folder)
	case err == nil:
		return "", fmt.Errorf("FOLDER %q exists: use a new folder", folder)
	}
	return filepath.Clean(folder), nil
}
