package elections

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// intrude lets a stranger act between the read and the write of an elector. The
// stranger is a candidate of the protocol: it acquires a Lease that is free or has not
// changed for its duration. Otherwise it changes a label, which only makes a new
// version.
func (r *run) intrude() {
	r.mu.Lock()
	busy := r.busy
	r.busy = true
	r.mu.Unlock()
	if busy {
		return
	}
	idle := func() {
		r.mu.Lock()
		r.busy = false
		r.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.script.RenewDeadline/4)
	defer cancel()
	seen, changed, ok := r.book.last()
	if !ok {
		idle()
		return
	}
	free := seen.holder() == "" || time.Since(changed) > time.Duration(*seen.lease.Spec.LeaseDurationSeconds)*time.Second
	if !free {
		_, err := r.world.leases.Patch(ctx, r.name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, time.Now().UnixNano()), metav1.PatchOptions{})
		r.note("a person changes a label: %v", err)
		idle()
		return
	}
	lease := seen.lease.DeepCopy()
	lease.ManagedFields = nil
	sent := time.Now()
	now := metav1.NewMicroTime(sent)
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To(strangerName), LeaseDurationSeconds: ptr.To(int32(r.script.LeaseDuration / time.Second)), AcquireTime: &now, RenewTime: &now,
		LeaseTransitions: ptr.To(seen.transitions() + 1),
	}
	lease, err := r.world.stranger.Update(ctx, lease, metav1.UpdateOptions{})
	if err != nil {
		r.note("the stranger does not get the Lease: %v", err)
		idle()
		return
	}
	t := &tenure{who: strangerName, term: int64(*lease.Spec.LeaseTransitions), start: time.Now()}
	r.mu.Lock()
	r.tenures = append(r.tenures, t)
	r.noteLocked("the stranger leads (term %d)", t.term)
	r.mu.Unlock()
	r.others.run(func() {
		defer idle()
		sleep(r.ctx, sent.Add(r.script.RenewDeadline*time.Duration(sent.UnixMicro()%10)/10))
		r.mu.Lock()
		t.ended = time.Now()
		t.left = t.ended
		r.noteLocked("the stranger stops")
		r.mu.Unlock()
		if sent.UnixMicro()%2 == 0 {
			return // without a release
		}
		now := metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.AcquireTime = ptr.To(""), &now, &now
		_, err := r.world.stranger.Update(r.ctx, lease, metav1.UpdateOptions{})
		r.note("the stranger releases the Lease: %v", err)
	})
}

// edits changes the Lease as people do.
func (r *run) edits() {
	for _, e := range r.script.edits {
		if !sleep(r.ctx, r.at(e.at)) {
			return
		}
		err := r.edit(e.kind)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			r.note("%v comes to nothing: %v", e.kind, err)
			continue
		}
		if err != nil {
			r.problem("%v: %v", e.kind, err)
		}
		r.note("%v", e.kind)
	}
}

func (r *run) edit(kind editKind) error {
	if kind == deletion {
		return r.world.leases.Delete(r.ctx, r.name, metav1.DeleteOptions{})
	}
	lease, err := r.world.leases.Get(r.ctx, r.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	lease.ManagedFields = nil
	switch kind {
	case noHolder:
		lease.Spec.HolderIdentity = ptr.To("")
	case otherHolder:
		lease.Spec.HolderIdentity = ptr.To("?! \u2603")
	case transitionsZero:
		lease.Spec.LeaseTransitions = ptr.To(int32(0))
	case longerDuration:
		lease.Spec.LeaseDurationSeconds = ptr.To(int32(2))
	case oldRenewTime:
		lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now().AddDate(-1, 0, 0)))
	case noAnnotations:
		lease.Annotations = nil
	case noSpec:
		lease.Spec = coordinationv1.LeaseSpec{}
	}
	_, err = r.world.leases.Update(r.ctx, lease, metav1.UpdateOptions{})
	return err
}
