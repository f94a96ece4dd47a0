package shard

import (
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// FuzzTable: no text of another user is fatal, and a table that can be read is the same
// after it was written again.
func FuzzTable(f *testing.F) {
	f.Add(`{"shards":2,"field":"object.metadata.uid","holders":[{"name":"a","uid":"1"}],"owners":[0,-1],"terms":[3,0]}`, int32(4))
	f.Add(`{"shards":3,"field":"object.metadata.namespace","starts":[5,7],"holders":[],"owners":[-1,-1,-1],"terms":[0,0,1]}`, int32(1))
	f.Add(`{"shards":-1}`, int32(-5))
	f.Add(`[[[[`, int32(0))
	f.Add(`{"shards":1,"field":"object.metadata.uid","holders":[],"owners":[0],"terms":[0]}`, int32(1))
	f.Add(`{"shards":2,"field":"object.metadata.uid","holders":[],"owners":[-1,-1],"terms":[0]}`, int32(1))
	f.Fuzz(func(t *testing.T, text string, number int32) {
		lease := &coordinationv1.Lease{}
		lease.Annotations = map[string]string{tableAnnotation: text}
		lease.Spec.LeaseTransitions = ptr.To(number)
		table, err := decode(lease)
		if err != nil {
			return
		}
		written, err := encode(lease, int64(number), table.ranges, table.entries, func(types.UID) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(written)
		if err != nil || !slices.Equal(again.entries, table.entries) || !again.ranges.equal(table.ranges) {
			t.Errorf("%v and %v, %v, want the same", table, again, err)
		}
	})
}
