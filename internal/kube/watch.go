package kube

import (
	"net/url"
	"strings"
)

// IsWatch reports whether a GET of u watches. It finds the query parameter without parsing
// the query, and interprets its value as the API server does.
func IsWatch(u *url.URL) bool {
	for parameter := range strings.SplitSeq(u.RawQuery, "&") {
		if name, value, _ := strings.Cut(parameter, "="); name == "watch" {
			return value != "0" && !strings.EqualFold(value, "false")
		}
	}
	return false
}
