package ssa_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/ssa"
)

// observed is an object that calls read when a decision reads its managedFields.
type observed struct {
	corev1.ConfigMap
	read func()
}

func (o *observed) GetManagedFields() []metav1.ManagedFieldsEntry {
	o.read()
	return o.ConfigMap.GetManagedFields()
}

// TestContext: if the context is done, no decision begins. If it ends during a decision, no
// request follows. Without that, each of the calls makes one request.
func TestContext(t *testing.T) {
	const fields = `{"f:data":{"f:color":{}}}`
	requests := 0
	apply := func(context.Context, *config, metav1.ApplyOptions) (*observed, error) {
		requests++
		return &observed{read: func() {}}, nil
	}
	patch := func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*observed, error) {
		requests++
		patched := &observed{read: func() {}}
		patched.UID = "u"
		return patched, nil
	}
	var memory ssa.Memory[*observed, *config]
	for _, tt := range []struct {
		name   string
		decide bool // whether the call reads live
		call   func(ctx context.Context, live *observed) error
	}{
		{name: "Apply", call: func(ctx context.Context, _ *observed) error {
			_, err := ssa.Apply(ctx, manager, apply, configMapOf("default", "red"))
			return err
		}},
		{name: "TryApply", decide: true, call: func(ctx context.Context, live *observed) error {
			_, err := ssa.TryApply(ctx, manager, apply, configMapOf("default", "blue"), live)
			return err
		}},
		{name: "ApplyChanged", decide: true, call: func(ctx context.Context, live *observed) error {
			_, _, err := ssa.ApplyChanged(ctx, manager, apply, configMapOf("default", "red"), live, nil)
			return err
		}},
		{name: "Memory.ApplyChanged", decide: true, call: func(ctx context.Context, live *observed) error {
			_, _, err := memory.ApplyChanged(ctx, manager, apply, configMapOf("default", "red"), live, nil)
			return err
		}},
		{name: "Migrate", decide: true, call: func(ctx context.Context, live *observed) error {
			_, _, err := ssa.Migrate(ctx, manager, patch, live, "editor")
			return err
		}},
		{name: "MigrateStatus", decide: true, call: func(ctx context.Context, live *observed) error {
			_, _, err := ssa.MigrateStatus(ctx, manager, patch, live, "reporter")
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			during := func() {}
			reads := 0
			live := &observed{read: func() { reads++; during() }}
			live.Name, live.Namespace, live.UID, live.ResourceVersion = "one", "default", "u", "7"
			live.ManagedFields = []metav1.ManagedFieldsEntry{
				entry(string(manager), "Apply", "v1", "", fields),
				entry("editor", "Update", "v1", "", fields), entry("reporter", "Update", "v1", "status", fields),
			}
			requests = 0
			if err := tt.call(ctx, live); err != nil || requests != 1 || (reads > 0) != tt.decide {
				t.Fatalf("error %v, %d requests and %d reads of live, want one request", err, requests, reads)
			}
			if during = cancel; tt.decide {
				requests = 0
				if err := tt.call(ctx, live); !errors.Is(err, context.Canceled) || requests > 0 {
					t.Errorf("the context ends during the decision: error %v and %d requests, want %v and none", err, requests, context.Canceled)
				}
			}
			cancel()
			requests, reads = 0, 0
			if err := tt.call(ctx, live); !errors.Is(err, context.Canceled) || requests > 0 || reads > 0 {
				t.Errorf("the context is done: error %v, %d requests and %d reads of live, want %v and none", err, requests, reads, context.Canceled)
			}
		})
	}
}
