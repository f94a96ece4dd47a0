package ready_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// object decodes an object of generation 2 as a client does. content has its spec and status.
func object(t testing.TB, apiVersion, kind, content string) *unstructured.Unstructured {
	t.Helper()
	text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"one","namespace":"default","generation":2},%s}`, apiVersion, kind, content)
	u := new(unstructured.Unstructured)
	if err := utiljson.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return u
}

// named is a custom resource whose condition Ready has the status.
func named(t testing.TB, name string, status metav1.ConditionStatus) *unstructured.Unstructured {
	u := object(t, "example.com/v1", "Widget", fmt.Sprintf(`"status":{"conditions":[{"type":"Ready","status":%q,"reason":"R"}]}`, status))
	u.SetName(name)
	return u
}
