package kube_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// TestWithoutValues: the texts of the API server that quote an object lose its values, wherever the library shows them.
func TestWithoutValues(t *testing.T) {
	const typed = "failed to create typed patch object (ns/a; /v1, Kind=Secret): "
	for _, tt := range []struct{ name, text, want string }{
		{"a map", typed + `.stringData.b: expected string, got &value.valueUnstructured{Value:map[string]interface {}{"p":"hunter2"}}`, typed + ".stringData.b: expected string, got (hidden)"},
		{"two", typed + "errors:\n  .stringData.a: expected string, got &value.valueUnstructured{Value:hunter2}\n  .stringData.b: expected string, got hunter2", typed + "errors:\n  .stringData.a: expected string, got (hidden)"},
		{"lines", typed + ".data: expected map, got &{-----BEGIN\nhunter2}", typed + ".data: expected map, got (hidden)"},
		{"a stored object", `failed to create typed live object (ns/a; example.com/v1, Kind=Box): .spec.n: expected string, got hunter2`, `failed to create typed live object (ns/a; example.com/v1, Kind=Box): .spec.n: expected string, got (hidden)`},
		{"no value", typed + ".spec.b: field not declared in schema", typed + ".spec.b: field not declared in schema"},
		{"a patched object", ` "" is invalid: patch: Invalid value: "{\"data\":{\"a\":\"hunter2\"}}": json: cannot unmarshal number into Go struct field Secret.stringData of type string`,
			` "" is invalid: patch: Invalid value: (hidden): json: cannot unmarshal number into Go struct field Secret.stringData of type string`},
		{"a cut object", ` "" is invalid: patch: Invalid value: "{\"data\":{\"a\":\"hunter2`, ` "" is invalid: patch: Invalid value: (hidden)`},
		{"another error", "no nodes match, got none", "no nodes match, got none"},
		{"two patched objects", `patch: Invalid value: "{hunter2}": json` + "\n" + `patch: Invalid value: "{hunter2}": json`, `patch: Invalid value: (hidden): json` + "\n" + `patch: Invalid value: (hidden): json`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500, Message: tt.text}}
			err := kube.WithoutValues(fmt.Errorf("apply: %w", status))
			if got := err.Error(); got != "apply: "+tt.want || !errors.Is(err, status) {
				t.Errorf("the error is %q, want %q", got, "apply: "+tt.want)
			}
			// Its text is not cut again, and the next error stays.
			joined := errors.Join(err, errors.New("want 200, got 503"))
			if got := kube.Message(joined.Error()); got != "apply: "+tt.want+"\nwant 200, got 503" && tt.name != "a cut object" && tt.name != "no value" {
				t.Errorf("the message of two errors is %q", got)
			}
			for name, got := range map[string]string{
				"Message":        kube.Message(status.Error()),
				"PrintableError": strings.ReplaceAll(kube.PrintableError(status, 4096).Error(), `\n`, "\n"),
			} {
				if got != tt.want {
					t.Errorf("%s is %q, want %q", name, got, tt.want)
				}
			}
			for limit := range len(tt.text) {
				if got := kube.Printable(tt.text, limit); strings.Contains(got, "hunter2") {
					t.Fatalf("with a limit of %d bytes the text is %q", limit, got)
				}
			}
		})
	}
	if err := errors.New("other"); kube.WithoutValues(err) != err || kube.WithoutValues(nil) != nil {
		t.Error("an error of another kind changed")
	}
}
