package controllertest

import "strings"

// shown returns the text of a field of an object as findings show it: without the contents
// of Secrets, and cut. The path is in a normalized state, such as "secrets/a .data.k".
func shown(path, text string) string {
	object, field, _ := strings.Cut(path, " .")
	if strings.HasPrefix(object, "secrets/") {
		top, _, _ := strings.Cut(field, ".")
		if top == "data" || top == "stringData" || strings.Contains(field, lastApplied) || strings.Contains(text, lastApplied) {
			return "<hidden>"
		}
	}
	if len(text) > maxShown {
		return strings.ToValidUTF8(text[:maxShown], "") + "..." // without half a character
	}
	return text
}

const (
	maxShown    = 200
	lastApplied = "last-applied-configuration" // of kubectl; it contains the data
)
