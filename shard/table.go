package shard

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/tenure"
	"github.com/controllerkit/controllerkit/shard/internal/hashes"
)

const (
	// groupLabel is the label of all Leases of a group. Its value is the group's name.
	groupLabel = "controllerkit.github.io/shard-group"
	// tableAnnotation holds the table.
	tableAnnotation = "controllerkit.github.io/shard-table"
	// maxAnnotation holds the number of shards that a replica takes at most; a replica
	// that leaves takes 0. Without it there is no limit.
	maxAnnotation = "controllerkit.github.io/shard-max"
	// rangesAnnotation describes the Ranges of a replica.
	rangesAnnotation = "controllerkit.github.io/shard-ranges"
)

// A table is the assignment of shards to replicas, as one version of its Lease has it. It
// is not modified.
type table struct {
	lease   *coordinationv1.Lease
	ranges  Ranges
	entries []entry
}

// An entry is the owner of one shard. An epoch of a replica is one Lease of it, from its
// creation to its end. If the epoch has not ended, only the replica changes the entry.
type entry struct {
	holder types.UID // of the Lease, which is the epoch; empty if the shard is free
	term   int64     // the number of the version that last changed the entry
}

// storedTable is the JSON of tableAnnotation.
type storedTable struct {
	Shards  int            `json:"shards"`
	Field   string         `json:"field"`
	Starts  []uint64       `json:"starts,omitempty"`
	Holders []storedHolder `json:"holders"`
	Owners  []int          `json:"owners"` // indices of Holders, -1 if free
	Terms   []int64        `json:"terms"`
}

type storedHolder struct {
	Name string    `json:"name"` // for readers
	UID  types.UID `json:"uid"`
}

// number returns the number of the version. Each write raises it.
func (t *table) number() int64 { return int64(ptr.Deref(t.lease.Spec.LeaseTransitions, 0)) }

// has reports whether the holder has an entry.
func (t *table) has(holder types.UID) bool {
	return slices.ContainsFunc(t.entries, func(e entry) bool { return e.holder == holder })
}

// free reports whether no shard has a holder.
func (t *table) free() bool {
	return !slices.ContainsFunc(t.entries, func(e entry) bool { return e.holder != "" })
}

// decode reads the table of a Lease. The text may be any user's.
func decode(lease *coordinationv1.Lease) (*table, error) {
	text, ok := lease.Annotations[tableAnnotation]
	if !ok {
		return nil, errors.New("it is absent")
	}
	var s storedTable
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, err
	}
	switch {
	case s.Field != hashes.ByUID && s.Field != hashes.ByNamespace:
		return nil, fmt.Errorf("field is %q, want %q or %q", s.Field, hashes.ByUID, hashes.ByNamespace)
	case len(s.Owners) != s.Shards || len(s.Terms) != s.Shards:
		return nil, fmt.Errorf("%d owners and %d terms, want %d", len(s.Owners), len(s.Terms), s.Shards)
	}
	ranges := Ranges{N: s.Shards, ByNamespace: s.Field == hashes.ByNamespace, Starts: s.Starts}
	if err := ranges.check(); err != nil {
		return nil, err
	}
	t := &table{lease: lease, ranges: ranges, entries: make([]entry, s.Shards)}
	for i, owner := range s.Owners {
		t.entries[i].term = s.Terms[i]
		switch {
		case s.Terms[i] < 0 || s.Terms[i] > t.number():
			return nil, fmt.Errorf("the term of shard %d is %d, want 0 to leaseTransitions, %d", i, s.Terms[i], t.number())
		case owner < -1 || owner >= len(s.Holders):
			return nil, fmt.Errorf("the owner of shard %d is %d, want -1 to %d", i, owner, len(s.Holders)-1)
		case owner >= 0 && s.Holders[owner].UID == "":
			return nil, fmt.Errorf("holder %d has no uid", owner)
		case owner >= 0:
			t.entries[i].holder = s.Holders[owner].UID
		}
	}
	return t, nil
}

// encode returns the Lease with the entries, as the version with the number. names has the
// names of holders.
func encode(lease *coordinationv1.Lease, number int64, ranges Ranges, entries []entry, names func(types.UID) string) (*coordinationv1.Lease, error) {
	if number > math.MaxInt32 {
		return nil, errors.New("leaseTransitions has the highest value: delete the Lease")
	}
	s := storedTable{Shards: ranges.N, Field: ranges.key(), Starts: ranges.Starts, Holders: []storedHolder{}, Owners: make([]int, len(entries)), Terms: make([]int64, len(entries))}
	index := map[types.UID]int{"": -1}
	for i, e := range entries {
		if _, ok := index[e.holder]; !ok {
			index[e.holder] = len(s.Holders)
			s.Holders = append(s.Holders, storedHolder{names(e.holder), e.holder})
		}
		s.Owners[i], s.Terms[i] = index[e.holder], e.term
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	lease = lease.DeepCopy()
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, tableAnnotation, string(text))
	now := tenure.Micro(time.Now())
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity:   ptr.To(fmt.Sprintf("%d replicas, %d shards", len(s.Holders), s.Shards)),
		LeaseTransitions: ptr.To(int32(number)),
		RenewTime:        &now,
	}
	return lease, nil
}
