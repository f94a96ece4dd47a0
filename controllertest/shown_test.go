package controllertest

import (
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/watch"
)

// TestShown: contents of Secrets are not shown, and long values are cut.
func TestShown(t *testing.T) {
	long := strings.Repeat("\u20ac", 100) // of 3 bytes
	tests := []struct{ path, text, want string }{
		{"secrets/a .data.k", "djE=", "<hidden>"},
		{"secrets/a", "exists", "exists"},
		{"secrets/ns/a (1 of 2) .data.tls.key", "djE=", "<hidden>"},
		{"secrets/ns/a .data", `{"k":"djE="}`, "<hidden>"},
		{"secrets/a .stringData.k", "v1", "<hidden>"},
		{"secrets/a .metadata.annotations.kubectl.kubernetes.io/last-applied-configuration", `{"data":{"k":"djE="}}`, "<hidden>"},
		{"secrets/a .metadata.annotations", `{"kubectl.kubernetes.io/last-applied-configuration":"x"}`, "<hidden>"},
		{"secrets/a .metadata.annotations.noted", "yes", "yes"},
		{"secrets/a .type", "Opaque", "Opaque"},
		{"secrets/a .database", "x", "x"},
		{"configmaps/secrets .data.k", "v1", "v1"},
		{"secrets.example.com/a .data.k", "v1", "v1"},
		{"configmaps/a .data.k", long[:198], long[:198]},
		{"configmaps/a .data.k", long, long[:198] + "..."},
	}
	for _, test := range tests {
		if got := shown(test.path, test.text); got != test.want || !utf8.ValidString(got) {
			t.Errorf("%s is shown as %q, want %q", test.path, got, test.want)
		}
	}
}

// TestSecretsAreNotShown: findings name the differing fields of a Secret, and not their
// contents.
func TestSecretsAreNotShown(t *testing.T) {
	const one = `{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"$ns","name":"a"},"type":"Opaque","data":{`
	flat := func(namespace, text string) map[string]any {
		r := quietRun(Scenario{}, namespace)
		return r.normalizeLocked(stateOf(t, r, 1, "secrets", text))
	}
	diff := differences(flat("ct-1", one+`"gone":"bmV2ZXI=","k":"djE=","same":"c2FtZQ=="}}`), flat("ct-2", one+`"k":"djI=","more":"bmV2ZXI=","same":"c2FtZQ=="}}`), nil, 0, 20)
	want := "  - secrets/a .data.gone: <hidden>\n  ~ secrets/a .data.k: <hidden>, without faults <hidden>\n  + secrets/a .data.more: <hidden>"
	if got := strings.Join(diff, "\n"); got != want {
		t.Errorf("the difference is\n%s\nwant\n%s", got, want)
	}
}

// TestValues: the values of the first of the changed fields are shown.
func TestValues(t *testing.T) {
	tests := []struct {
		resource, first, second, third string
		want                           string
	}{
		{"configmaps", `"a":"1","b":"1","c":"1","d":"1"`, `"a":"2","b":"2","c":"2","d":"2"`, `"a":"3","b":"3","c":"3","d":"3"`, `configmaps/x .data.a was "1", then "2", then "3"`},
		{"secrets", `"k":"djE="`, `"k":"djI="`, `"k":"djM="`, "secrets/x .data.k was <hidden>, then <hidden>, then <hidden>"},
		{"configmaps", `"k":"1"`, `"k":"2"`, `"k":"` + strings.Repeat("x", 300) + `"`, `configmaps/x .data.k was "1", then "2", then "` + strings.Repeat("x", 199) + "..."},
	}
	for _, test := range tests {
		for range 20 { // the order of a map
			r := quietRun(Scenario{}, "ns")
			for _, data := range []string{test.first, test.second, test.third} {
				o := object(t, `{"apiVersion":"v1","kind":"X","metadata":{"name":"x"},"data":{`+data+`}}`)
				r.history = append(r.history, event{key: objectKey{resource: test.resource, name: "x"}, kind: watch.Modified, object: o})
			}
			if got := r.valuesLocked(); got != test.want {
				t.Fatalf("the values are %q, want %q", got, test.want)
			}
		}
	}
}
