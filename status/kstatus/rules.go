package kstatus

import (
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// rule returns the rule of a kind whose readiness is not a condition of type Ready, or nil.
func rule(kind schema.GroupKind) func(*view) (State, string) {
	switch kind.String() {
	case "APIService.apiregistration.k8s.io":
		return func(v *view) (State, string) { return v.decided("", "Available") }
	case "CustomResourceDefinition.apiextensions.k8s.io":
		return customResourceDefinition
	case "DaemonSet.apps":
		return daemonSet
	case "Deployment.apps":
		return deployment
	case "Job.batch":
		return func(v *view) (State, string) { return v.decided("Failed", "Complete", "Suspended") }
	case "PersistentVolume":
		return func(v *view) (State, string) { return v.phase("Failed", "Available", "Bound", "Released") }
	case "PersistentVolumeClaim":
		return func(v *view) (State, string) { return v.phase("Lost", "Bound") }
	case "Pod":
		return pod
	case "PodDisruptionBudget.policy":
		return func(v *view) (State, string) { return v.counts(v.status("desiredHealthy"), "currentHealthy") }
	case "ReplicaSet.apps", "ReplicationController":
		return replicaSet
	case "Service":
		return service
	case "StatefulSet.apps":
		return statefulSet
	}
	return nil
}

// decided is the rule of kinds whose conditions of some types are an end if they are True.
func (v *view) decided(failed string, ready ...string) (State, string) {
	reason := fmt.Sprintf("no condition of %q is True", ready)
	for i := range v.conditions {
		switch c := &v.conditions[i]; {
		case !c.isTrue():
			if slices.Contains(ready, c.kind) {
				reason = c.String()
			}
		case c.kind == failed:
			return Failed, c.String()
		case slices.Contains(ready, c.kind):
			return Ready, c.String()
		}
	}
	return Progressing, reason
}

// phase is the rule of kinds that have a phase.
func (v *view) phase(failed string, ready ...string) (State, string) {
	phase := v.text("status", "phase")
	state := Progressing
	switch {
	case phase == failed:
		state = Failed
	case slices.Contains(ready, phase):
		state = Ready
	}
	return state, "status.phase is " + or(phase)
}

// counts is the rule of kinds that count Pods. Their controllers always set
// status.observedGeneration.
func (v *view) counts(wanted int64, fields ...string) (State, string) {
	if _, found := v.number("status", "observedGeneration"); !found {
		return Progressing, "status.observedGeneration is missing"
	}
	for _, field := range fields {
		if n := v.status(field); n < wanted || n > wanted && field == "replicas" {
			return Progressing, fmt.Sprintf("status.%s is %d, and %d are wanted", field, n, wanted)
		}
	}
	return Ready, fmt.Sprintf("%d are wanted and exist", wanted)
}

// replicas returns spec.replicas.
func (v *view) replicas() int64 {
	if n, found := v.number("spec", "replicas"); found {
		return n
	}
	return 1
}

func deployment(v *view) (State, string) {
	state, reason := rollout(v)
	// Its controller copies the condition of a ReplicaSet. The text names what denies the Pods, such as a quota.
	if failure := v.condition("ReplicaFailure"); state != Ready && failure.isTrue() {
		reason = failure.String()
	}
	return state, reason
}

func rollout(v *view) (State, string) {
	progress, available := v.condition("Progressing"), v.condition("Available")
	if progress != nil && progress.reason == "ProgressDeadlineExceeded" {
		return Failed, progress.String()
	}
	state, reason := v.counts(v.replicas(), "replicas", "updatedReplicas", "availableReplicas", "readyReplicas")
	// Without a deadline, the controller sets no condition Progressing.
	deadline, limited := v.number("spec", "progressDeadlineSeconds")
	switch {
	case state != Ready:
	case !available.isTrue():
		return Progressing, "condition Available is not True"
	case limited && deadline != math.MaxInt32 && (!progress.isTrue() || progress.reason != "NewReplicaSetAvailable"):
		return Progressing, "condition Progressing is not True with the reason NewReplicaSetAvailable"
	}
	return state, reason
}

func replicaSet(v *view) (State, string) {
	if c := v.condition("ReplicaFailure"); c.isTrue() {
		return Progressing, c.String()
	}
	return v.counts(v.replicas(), "replicas", "fullyLabeledReplicas", "availableReplicas", "readyReplicas")
}

func statefulSet(v *view) (State, string) {
	wanted := v.replicas()
	state, reason := v.counts(wanted, "replicas", "readyReplicas")
	if state != Ready || v.text("spec", "updateStrategy", "type") == "OnDelete" { // its users replace old Pods
		return state, reason
	}
	if partition, _ := v.number("spec", "updateStrategy", "rollingUpdate", "partition"); partition > 0 {
		return v.counts(wanted-partition, "updatedReplicas")
	}
	if v.text("status", "currentRevision") != v.text("status", "updateRevision") {
		return Progressing, "status.currentRevision is not status.updateRevision"
	}
	return v.counts(wanted, "currentReplicas")
}

func daemonSet(v *view) (State, string) {
	fields := []string{"currentNumberScheduled", "numberAvailable", "numberReady"}
	if v.text("spec", "updateStrategy", "type") != "OnDelete" {
		fields = append(fields, "updatedNumberScheduled")
	}
	return v.counts(v.status("desiredNumberScheduled"), fields...)
}

func pod(v *view) (State, string) {
	phase, condition := v.text("status", "phase"), v.condition("Ready")
	switch {
	case phase == "Succeeded":
		return Ready, "the Pod succeeded"
	case phase == "Failed":
		return Failed, with("the Pod failed", v.text("status", "reason"), v.text("status", "message"))
	case phase == "Running" && condition.isTrue():
		return Ready, condition.String()
	}
	for _, field := range []string{"initContainerStatuses", "containerStatuses"} {
		for container := range v.list("status", field) {
			if container.text("state", "waiting", "reason") == "CrashLoopBackOff" {
				return Failed, "the container " + or(container.text("name")) + " is in CrashLoopBackOff"
			}
		}
	}
	if scheduled := v.condition("PodScheduled"); scheduled != nil && !scheduled.isTrue() {
		return Progressing, scheduled.String()
	}
	return Progressing, "status.phase is " + or(phase) + ", and condition Ready is not True"
}

func service(v *view) (State, string) {
	if v.text("spec", "type") != "LoadBalancer" {
		return Ready, "the type of the Service needs no status"
	}
	for range v.list("status", "loadBalancer", "ingress") {
		return Ready, "the load balancer has an address"
	}
	return Progressing, "the load balancer has no address"
}

func customResourceDefinition(v *view) (State, string) {
	names := v.condition("NamesAccepted")
	if names != nil && names.status == "False" && !v.condition("Established").isTrue() {
		return Failed, names.String()
	}
	return v.decided("", "Established")
}
