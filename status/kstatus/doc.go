// Package kstatus reads and writes readiness by the rules of kstatus, with which kubectl
// plugins, Flux and Helm wait for objects of any kind.
//
// It replaces a function with a case for each kind of child, and conditions that such
// programs read in another way than they are meant:
//
//	for _, child := range children {
//		objects = append(objects, child)
//	}
//	ready := kstatus.Condition(objects...)
//	return status.Set(&widget.Status.Conditions, widget.Generation, kstatus.Conditions(ready, false)...)
//
// Most callers pass the objects of their listers to [Condition] in each reconcile, and
// watch the kinds of these objects. [Of] returns the state of one object. [Conditions] adds
// Reconciling and Stalled to a condition Ready, and [Check] finds mistakes of a status in
// a test. No function makes a request or waits, and the result depends only on the arguments.
//
// # Rules
//
// These rules apply to each kind, in this order:
//
//   - An object with a deletionTimestamp is [Terminating].
//   - If status.observedGeneration differs from metadata.generation, the object is
//     [Progressing]. A kind of another project can store it as text, such as a Rollout of Argo.
//   - If a condition Reconciling is True, the object is Progressing. If a condition Stalled
//     is True, it is [Failed].
//
// Then the kinds of Kubernetes have rules of their own: Deployment, ReplicaSet,
// ReplicationController, StatefulSet and DaemonSet by their replicas; Job, Pod, Service,
// PersistentVolume, PersistentVolumeClaim, PodDisruptionBudget,
// CustomResourceDefinition and APIService. Any other object is [Ready] if its condition
// Ready is True, or if it has no such condition. [Rules] add rules for other kinds:
//
//	rules := kstatus.Rules{
//		{Group: "gateway.networking.k8s.io", Kind: "Gateway"}: kstatus.AllTrue("Accepted", "Programmed"),
//	}
//	ready := rules.Condition(objects...)
//
// The package differs from kstatus in these rules, so that no object is Ready too early:
//
//   - A Job is Ready once it is complete or suspended, not once it has begun.
//   - A Service of type LoadBalancer is Ready once it has an address.
//   - A Deployment, ReplicaSet, StatefulSet, DaemonSet or PodDisruptionBudget without
//     status.observedGeneration is Progressing.
//   - If the observedGeneration of a condition is older than the object, a Ready makes the
//     object Progressing, and a Reconciling or Stalled does not count. A condition without one
//     has the newest of the other conditions.
//   - A StatefulSet with the update strategy OnDelete is Ready once its replicas are, of any
//     revision.
//   - An APIService is Ready once it is Available. A lost PersistentVolumeClaim and a
//     failed PersistentVolume are Failed.
//   - A Pod that cannot be scheduled is Progressing, because only a clock could make it
//     Failed.
//
// # Guarantees
//
//   - RD1: If the status is about another generation, or is empty in a kind with a rule that
//     reads it, Of does not return Ready.
//
// # Caveats
//
// A kind without a rule and without the condition Ready is Ready at once, as in kstatus.
// That is right for a ConfigMap, and wrong for a custom resource whose controller has not
// yet seen it. Give such a kind a rule in [Rules]. Its author can set status.observedGeneration,
// or the condition Ready to False or Unknown by a default of the schema.
package kstatus
