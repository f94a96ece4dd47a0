package apply

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Sum is the hash of a configuration and an object.
type Sum [sha256.Size]byte

// Sum hashes the configuration and all of an object that an apply of the configuration
// depends on. That excludes the status, unless the configuration has one, and includes the
// owners of fields if owners is true. owned reports whether the object has any. ok is false
// for objects that are too large to decide about.
func (c *Config) Sum(obj metav1.Object, owners bool) (sum Sum, owned, ok bool) {
	if c.forest == nil {
		return sum, false, false
	}
	if _, ok := countable(obj, maxNodes); !ok {
		return sum, false, false
	}
	entries := obj.GetManagedFields()
	size := 2 * len(c.JSON)
	for _, e := range entries {
		if e.FieldsV1 != nil {
			size += len(e.FieldsV1.GetRawString())
		}
	}
	if size > maxCompared {
		return sum, false, false
	}
	encoded, err := encode(obj)
	if err != nil || len(c.JSON)+len(encoded) > maxCompared {
		return sum, false, false
	}
	h := sha256.New()
	part(h, c.JSON)
	status := false
	for name := range members(c.JSON) {
		status = status || name == "status"
	}
	for name, value := range members(encoded) {
		switch name {
		case "apiVersion", "kind": // typed clients return none, and caches can set them
		case "metadata":
			part(h, name)
			for name, value := range members(value) {
				switch name {
				case "resourceVersion", "generation", "managedFields":
				default:
					part(h, name)
					part(h, value)
				}
			}
			part(h, "")
		case "status":
			if status {
				part(h, name)
				part(h, value)
			}
		case "spec":
			part(h, name)
			if c.kind == "StatefulSet" && strings.HasPrefix(c.apiVersion, "apps/") {
				for name, value := range members(value) {
					part(h, name)
					if name == "volumeClaimTemplates" {
						value = withoutTypes(value)
					}
					part(h, value)
				}
				value = ""
			}
			part(h, value)
		default:
			part(h, name)
			part(h, value)
		}
	}
	var fields []string
	for _, e := range entries {
		if owners && e.Subresource != "status" && e.FieldsV1 != nil {
			// A no-op apply can change the times, and with them the order.
			fields = append(fields, fmt.Sprintf("%q %q %q %q %s", e.Manager, e.Operation, e.APIVersion, e.Subresource, e.FieldsV1.GetRawString()))
		}
	}
	slices.Sort(fields)
	part(h, "")
	for _, f := range fields {
		part(h, f)
	}
	return Sum(h.Sum(nil)), len(entries) > 0, true
}

// withoutTypes removes apiVersion and kind from the objects of a list. The templates of a
// StatefulSet have them in JSON and CBOR and not in protobuf, which also is the encoding that the
// API server stores. They are the only objects with a type of their own in a built-in type.
func withoutTypes(list string) string {
	var objects []map[string]json.RawMessage
	if json.Unmarshal([]byte(list), &objects) != nil {
		return list
	}
	for _, o := range objects {
		delete(o, "apiVersion")
		delete(o, "kind")
	}
	encoded, err := json.Marshal(objects)
	if err != nil {
		return list
	}
	return string(encoded)
}

// part writes a text with its length, so that no other texts have the same hash.
func part(h hash.Hash, text string) {
	_, _ = fmt.Fprintf(h, "%d:", len(text))
	_, _ = io.WriteString(h, text)
}
