package objects

import (
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// With returns a copy of the map with one more entry.
func With(m map[string]string, key, value string) map[string]string {
	m = maps.Clone(m)
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// Unstructured returns the JSON of a configuration, which it does not modify, as an object.
func Unstructured(config any) (*unstructured.Unstructured, error) {
	if u, ok := config.(*unstructured.Unstructured); ok {
		return u.DeepCopy(), nil
	}
	data, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	u := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(data, &u.Object); err != nil || u.Object == nil {
		return nil, fmt.Errorf("a %T is not an apply configuration: pass one, or an *unstructured.Unstructured", config)
	}
	return u, nil
}
