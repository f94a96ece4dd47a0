package migrate

import (
	"maps"
	"slices"
)

// lost returns the path of a field that the schema from allows and to prunes, or "". Both are
// structural, as the API server requires.
func lost(from, to map[string]any, path string) string {
	if preserves(from) && !preserves(to) {
		return path + ".*"
	}
	for _, name := range slices.Sorted(maps.Keys(object(from["properties"]))) {
		if path == "" && (name == "apiVersion" || name == "kind" || name == "metadata") {
			continue
		}
		below, ok := property(to, name)
		if !ok {
			return path + "." + name
		}
		if field := lost(object(object(from["properties"])[name]), below, path+"."+name); field != "" {
			return field
		}
	}
	if values, allowed := additional(from); allowed {
		below, ok := additional(to)
		if !ok && !preserves(to) {
			return path + ".*"
		}
		if field := lost(values, below, path+".*"); ok && field != "" {
			return field
		}
	}
	if items := object(from["items"]); items != nil {
		below := object(to["items"])
		if below == nil && !preserves(to) {
			return path + "[]"
		}
		if field := lost(items, below, path+"[]"); below != nil && field != "" {
			return field
		}
	}
	return ""
}

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func preserves(schema map[string]any) bool {
	return schema["x-kubernetes-preserve-unknown-fields"] == true
}

// anything is the schema of a value whose fields are not pruned.
func anything() map[string]any { return map[string]any{"x-kubernetes-preserve-unknown-fields": true} }

// property returns the schema of a field, and whether the field is kept.
func property(of map[string]any, name string) (map[string]any, bool) {
	if below, ok := object(of["properties"])[name]; ok {
		return object(below), true
	}
	if below, ok := additional(of); ok {
		return below, true
	}
	return anything(), preserves(of)
}

// additional returns the schema of the values of a map.
func additional(of map[string]any) (map[string]any, bool) {
	switch values := of["additionalProperties"].(type) {
	case map[string]any:
		return values, true
	case bool:
		return anything(), values
	}
	return nil, false
}

// missing returns the path of a value that the object before has and after lacks, or "".
func missing(before, after any, path string) string {
	switch b := before.(type) {
	case map[string]any:
		a, ok := after.(map[string]any)
		if !ok {
			return path
		}
		for _, name := range slices.Sorted(maps.Keys(b)) {
			if path == "" && (name == "apiVersion" || name == "metadata") {
				continue
			}
			value, ok := a[name]
			if !ok {
				return path + "." + name
			}
			if field := missing(b[name], value, path+"."+name); field != "" {
				return field
			}
		}
	case []any:
		a, ok := after.([]any)
		if !ok || len(a) != len(b) {
			return path
		}
		for i := range b {
			if field := missing(b[i], a[i], path+"[]"); field != "" {
				return field
			}
		}
	}
	return ""
}
