package grafanatest

import (
	"os"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// check returns what Grafana's schema has against a dashboard.
func check(data []byte) error {
	plugins.RegisterDefaultPlugins()
	var d dashboard.Dashboard
	if err := d.UnmarshalJSONStrict(data); err != nil {
		return err
	}
	return d.Validate()
}

// TestDashboard: dashboard.json has only fields of Grafana's schema, with the types and
// values that the schema allows, also in the queries and the options of the panels.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile("../../metrics/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := check(data); err != nil {
		t.Errorf("dashboard.json: %v", err)
	}
	for _, mistake := range []struct{ old, new string }{
		{`"panels": [`, `"panel": [`},
		{`"expr": "`, `"expression": "`},
		{`"min": 0`, `"min": "0"`},
		{`"placement": "bottom"`, `"placement": 1`},
		{`"refresh": 2`, `"refresh": "2"`},
		{`"schemaVersion": 39`, `"schemaVersion": "39"`},
		{`"h": 7`, `"h": 7.5`},
		{`"w": 8`, `"w": 80`},
	} {
		wrong := strings.Replace(string(data), mistake.old, mistake.new, 1)
		if wrong == string(data) {
			t.Errorf("dashboard.json has no %s", mistake.old)
		} else if check([]byte(wrong)) == nil {
			t.Errorf("the schema accepts %s", mistake.new)
		}
	}
}
