package ssa_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/ssa"
)

func TestOwners(t *testing.T) {
	const color = `{"f:data":{"f:color":{}}}`
	at := func(e metav1.ManagedFieldsEntry, second int64) metav1.ManagedFieldsEntry {
		e.Time = &metav1.Time{Time: time.Unix(second, 0)}
		return e
	}
	entries := []metav1.ManagedFieldsEntry{
		at(entry("painter", "Apply", "v1", "", color), 1),
		at(entry("painter", "Update", "v1", "status", color), 2),
		at(entry("tailor", "Update", "v1", "", `{"f:data":{".":{},"f:color":{},"f:size":{}}}`), 3),
		entry("broken", "Update", "v1", "", `{"x":1}`),
		entry("timeless", "Update", "v1", "", `{"f:set":{"v:1":{}}}`),
		{Manager: "empty", Operation: "Update"},
		at(entry(string(manager), "Apply", "v1", "", color), 4),
		at(entry(string(manager), "Apply", "v1", "scale", `{"f:spec":{"f:replicas":{}}}`), 5),
	}
	tests := []struct {
		name      string
		conflicts []ssa.Conflict
		want      []ssa.Owner
	}{
		{name: "both ways of one manager", conflicts: []ssa.Conflict{{Field: ".data.color", Manager: "painter"}, {Field: ".data.color", Manager: "painter"}}, want: []ssa.Owner{
			{Field: ".data.color", Manager: "painter", Operation: "Apply", Time: time.Unix(1, 0)},
			{Field: ".data.color", Manager: "painter", Operation: "Update", Subresource: "status", Time: time.Unix(2, 0)},
		}},
		{name: "one of several", conflicts: []ssa.Conflict{{Field: ".data.color", Manager: "tailor"}}, want: []ssa.Owner{
			{Field: ".data.color", Manager: "tailor", Operation: "Update", Time: time.Unix(3, 0)},
		}},
		{name: "nobody in particular", conflicts: []ssa.Conflict{{Field: ".data.size"}}, want: []ssa.Owner{
			{Field: ".data.size", Manager: "tailor", Operation: "Update", Time: time.Unix(3, 0)},
		}},
		{name: "no time", conflicts: []ssa.Conflict{{Field: ".set[=1]", Manager: "timeless"}}, want: []ssa.Owner{
			{Field: ".set[=1]", Manager: "timeless", Operation: "Update"},
		}},
		{name: "itself by another way", conflicts: []ssa.Conflict{{Field: ".spec.replicas", Manager: string(manager)}}, want: []ssa.Owner{
			{Field: ".spec.replicas", Manager: string(manager), Operation: "Apply", Subresource: "scale", Time: time.Unix(5, 0)},
		}},
		{name: "not in live", conflicts: []ssa.Conflict{{Field: ".data.color", Manager: "broken"}, {Field: ".data.color", Manager: string(manager)}}, want: []ssa.Owner{
			{Field: ".data.color", Manager: "broken"}, {Field: ".data.color", Manager: string(manager)},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			live := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: entries}}
			got := (&ssa.ConflictError{Conflicts: tt.conflicts}).Owners(manager, live)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
