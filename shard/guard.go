package shard

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/tenure"
)

// ErrLost is the cause of the end of work's context after the shard is lost, and the error
// of Shard.Check from then on. Its type has the method LeadershipLost() bool, which
// returns true, so that packages can distinguish it from a requested stop without
// importing this one.
var ErrLost error = &lostError{}

type lostError struct{}

func (*lostError) Error() string        { return "shard: no longer the owner of the shard" }
func (*lostError) LeadershipLost() bool { return true }

// errMoves is the cause of the end of work's context if the shard moves to another replica.
var errMoves = errors.New("shard: the shard moves to another replica")

// A Shard is one uninterrupted ownership of a shard, and its fencing token. While the
// table's Lease is not deleted and etcd is not restored from a backup, each later owner of
// the shard has the same Table and a higher Term.
type Shard struct {
	// Index is the number of the shard, from 0 to Ranges.N - 1.
	Index int
	// Table is the UID of the Lease with the table.
	Table types.UID
	// Term is the number of the table's version that assigned the shard, which is the
	// leaseTransitions of that version.
	Term int64
}

// From returns the shard of work's context, or of a context derived from it, and false for
// any other context. The shard may be lost: see [Shard.Check].
func From(ctx context.Context) (Shard, bool) {
	if o, ok := ctx.Value(ownershipKey{}).(*ownership); ok {
		return o.Shard, true
	}
	return Shard{}, false
}

// Check returns nil if this replica owns the shard in its term at this moment, and ErrLost
// otherwise, also after work has returned. It reads only the clock. ctx must be work's
// context or one derived from it. It may be done, because the shard is kept while work
// drains. Call Check just before an effect that the next owner must not repeat.
func (s Shard) Check(ctx context.Context) error {
	o, ok := ctx.Value(ownershipKey{}).(*ownership)
	if !ok {
		return errNoShard
	}
	if o.Shard != s || !o.valid() {
		return ErrLost
	}
	return nil
}

var errNoShard = errors.New("shard: the context has no shard: use the context of work")

type ownershipKey struct{}

// An ownership is the state of a Shard: it ends with the epoch, or earlier.
type ownership struct {
	Shard
	epoch *tenure.Period
	over  atomic.Bool
}

func (o *ownership) valid() bool { return !o.over.Load() && o.epoch.Valid() }

// Guard is a transport that sends writes for the owner of a shard alone. Set it in the
// configuration of the clients that work uses:
//
//	config.Wrap(shard.Guard)
//
// Guard sends a write only if its context is work's or derived from it, and only while
// this replica owns the shard of the context, as in [Shard.Check]. It does not check
// whether the written object is of that shard. A write is a request with any method but
// GET, HEAD and OPTIONS, and also exec, attach and port-forward by WebSocket. The check is
// the last step before the request is sent, and is repeated before each retry of client-go.
// After the loss the error of a write is ErrLost. Reads always pass. The Group needs a
// client without Guard. The errors of Guard have a method NotSent() bool, which returns
// true.
func Guard(next http.RoundTripper) http.RoundTripper {
	return &tenure.Guard{Next: next, Admit: admit}
}

func admit(req *http.Request) (*http.Request, error) {
	o, ok := req.Context().Value(ownershipKey{}).(*ownership)
	switch {
	case !ok:
		return nil, errNotGuarded
	case !o.valid():
		return nil, ErrLost
	}
	return req, nil
}

var errNotGuarded = errors.New("shard: the context of a guarded write has no shard: " +
	"use the context of work, or a client without Guard for the Group and for work outside of shards")
