package kstatus_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	carpv1 "k8s.io/apimachinery/pkg/apis/testapigroup/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/controllerkit/controllerkit/status/kstatus"
)

// Each kind has its rules, also as a typed object without a kind.
//
// Proves RD1.
func TestOf(t *testing.T) {
	const (
		deployed = `"replicas":3,"updatedReplicas":3,"availableReplicas":3,"readyReplicas":3`
		stateful = `"replicas":3,"readyReplicas":3,"currentReplicas":3,"updatedReplicas":3`
		finished = `"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable"}]`
		observed = `"observedGeneration":2,`
		denied   = `{"type":"ReplicaFailure","status":"True","reason":"FailedCreate","message":"exceeded quota"}`
	)
	for _, tt := range []struct {
		kind    string // with apiVersion
		name    string
		content string
		want    kstatus.State
		reason  string // a part of it
	}{
		{"apps/v1 Deployment", "new", `"spec":{"replicas":3},"status":{}`, kstatus.Progressing, "observedGeneration is missing"},
		{"apps/v1 Deployment", "old", `"spec":{"replicas":3},"status":{"observedGeneration":1,` + deployed + "," + finished + `}`, kstatus.Progressing, "is 1, and the generation is 2"},
		{"apps/v1 Deployment", "ahead", `"spec":{"replicas":3},"status":{"observedGeneration":3,` + deployed + "," + finished + `}`, kstatus.Progressing, "is 3, and the generation is 2"},
		{"apps/v1 Deployment", "done", `"spec":{"replicas":3},"status":{` + observed + deployed + "," + finished + `}`, kstatus.Ready, "3 are wanted"},
		{"apps/v1 Deployment", "one by default", `"spec":{},"status":{` + observed + finished + `,"replicas":1,"updatedReplicas":1,"availableReplicas":1,"readyReplicas":1}`, kstatus.Ready, ""},
		{"apps/v1 Deployment", "none by default", `"spec":{},"status":{` + observed + finished + `}`, kstatus.Progressing, "status.replicas is 0, and 1"},
		{"apps/v1 Deployment", "few", `"spec":{"replicas":4},"status":{` + observed + deployed + "," + finished + `}`, kstatus.Progressing, "status.replicas is 3, and 4"},
		{"apps/v1 Deployment", "too many", `"spec":{"replicas":2},"status":{` + observed + deployed + "," + finished + `}`, kstatus.Progressing, "status.replicas is 3, and 2"},
		{"apps/v1 Deployment", "not updated", `"spec":{"replicas":3},"status":{` + observed + finished + `,"replicas":3,"updatedReplicas":2,"availableReplicas":3,"readyReplicas":3}`, kstatus.Progressing, "updatedReplicas"},
		{"apps/v1 Deployment", "not available", `"spec":{"replicas":3},"status":{` + observed + finished + `,"replicas":3,"updatedReplicas":3,"availableReplicas":2,"readyReplicas":3}`, kstatus.Progressing, "availableReplicas"},
		{"apps/v1 Deployment", "not ready", `"spec":{"replicas":3},"status":{` + observed + finished + `,"replicas":3,"updatedReplicas":3,"availableReplicas":3,"readyReplicas":2}`, kstatus.Progressing, "readyReplicas"},
		{"apps/v1 Deployment", "no deadline", `"spec":{"replicas":3},"status":{` + observed + deployed + `,"conditions":[{"type":"Available","status":"True"}]}`, kstatus.Ready, ""},
		{"apps/v1 Deployment", "endless deadline", `"spec":{"replicas":3,"progressDeadlineSeconds":2147483647},"status":{` + observed + deployed + `,"conditions":[{"type":"Available","status":"True"}]}`, kstatus.Ready, ""},
		{"apps/v1 Deployment", "deadline", `"spec":{"replicas":3,"progressDeadlineSeconds":600},"status":{` + observed + deployed + `,"conditions":[{"type":"Available","status":"True"}]}`, kstatus.Progressing, "condition Progressing"},
		{"apps/v1 Deployment", "paused", `"spec":{"replicas":3,"progressDeadlineSeconds":600},"status":{` + observed + deployed + `,"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"Unknown","reason":"DeploymentPaused"}]}`, kstatus.Progressing, "condition Progressing"},
		{"apps/v1 Deployment", "rolling", `"spec":{"replicas":3,"progressDeadlineSeconds":600},"status":{` + observed + deployed + `,"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"True","reason":"ReplicaSetUpdated"}]}`, kstatus.Progressing, "condition Progressing"},
		{"apps/v1 Deployment", "unavailable", `"spec":{"replicas":3},"status":{` + observed + deployed + `,"conditions":[{"type":"Available","status":"False"}]}`, kstatus.Progressing, "condition Available"},
		{"apps/v1 Deployment", "stuck", `"spec":{"replicas":3},"status":{` + observed + `"conditions":[{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded","message":"no image"}]}`, kstatus.Failed, "no image"},
		{"apps/v1 Deployment", "quota", `"spec":{"replicas":3},"status":{` + observed + `"conditions":[{"type":"Progressing","status":"True","reason":"ReplicaSetUpdated"},` + denied + `]}`, kstatus.Progressing, "FailedCreate: exceeded quota"},
		{"apps/v1 Deployment", "quota and deadline", `"spec":{"replicas":3},"status":{` + observed + `"conditions":[{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded","message":"no image"},` + denied + `]}`, kstatus.Failed, "FailedCreate: exceeded quota"},
		{"apps/v1 Deployment", "ready with a denied Pod", `"spec":{"replicas":3},"status":{` + observed + deployed + `,"conditions":[{"type":"Available","status":"True"},` + denied + `]}`, kstatus.Ready, "3 are wanted"},
		{"apps/v1 Deployment", "no denied Pod", `"spec":{"replicas":3},"status":{` + observed + `"conditions":[{"type":"ReplicaFailure","status":"False","message":"exceeded quota"}]}`, kstatus.Progressing, "status.replicas is 0"},

		{"apps/v1 ReplicaSet", "new", `"spec":{},"status":{"replicas":0}`, kstatus.Progressing, "observedGeneration is missing"},
		{"apps/v1 ReplicaSet", "done", `"spec":{"replicas":1},"status":{` + observed + `"replicas":1,"fullyLabeledReplicas":1,"availableReplicas":1,"readyReplicas":1}`, kstatus.Ready, ""},
		{"apps/v1 ReplicaSet", "not labeled", `"spec":{"replicas":1},"status":{` + observed + `"replicas":1,"availableReplicas":1,"readyReplicas":1}`, kstatus.Progressing, "fullyLabeledReplicas"},
		{"apps/v1 ReplicaSet", "not available", `"spec":{"replicas":1},"status":{` + observed + `"replicas":1,"fullyLabeledReplicas":1,"readyReplicas":1}`, kstatus.Progressing, "availableReplicas"},
		{"apps/v1 ReplicaSet", "not ready", `"spec":{"replicas":1},"status":{` + observed + `"replicas":1,"fullyLabeledReplicas":1,"availableReplicas":1}`, kstatus.Progressing, "readyReplicas"},
		{"apps/v1 ReplicaSet", "too many", `"spec":{"replicas":0},"status":{` + observed + `"replicas":1}`, kstatus.Progressing, "status.replicas is 1, and 0"},
		{"apps/v1 ReplicaSet", "quota", `"spec":{"replicas":1},"status":{` + observed + `"replicas":1,"fullyLabeledReplicas":1,"availableReplicas":1,"readyReplicas":1,"conditions":[{"type":"ReplicaFailure","status":"True","reason":"FailedCreate"}]}`, kstatus.Progressing, "FailedCreate"},
		{"v1 ReplicationController", "done", `"spec":{"replicas":1},"status":{` + observed + `"replicas":1,"fullyLabeledReplicas":1,"availableReplicas":1,"readyReplicas":1}`, kstatus.Ready, ""},
		{"v1 ReplicationController", "new", `"spec":{},"status":{"replicas":0}`, kstatus.Progressing, "observedGeneration is missing"},

		{"apps/v1 StatefulSet", "new", `"spec":{},"status":{"replicas":0}`, kstatus.Progressing, "observedGeneration is missing"},
		{"apps/v1 StatefulSet", "done", `"spec":{"replicas":3},"status":{` + observed + stateful + `,"currentRevision":"a","updateRevision":"a"}`, kstatus.Ready, ""},
		{"apps/v1 StatefulSet", "few", `"spec":{"replicas":4},"status":{` + observed + stateful + `}`, kstatus.Progressing, "status.replicas is 3, and 4"},
		{"apps/v1 StatefulSet", "too many", `"spec":{"replicas":2},"status":{` + observed + stateful + `}`, kstatus.Progressing, "status.replicas is 3, and 2"},
		{"apps/v1 StatefulSet", "not ready", `"spec":{"replicas":3},"status":{` + observed + `"replicas":3,"readyReplicas":2,"currentReplicas":3}`, kstatus.Progressing, "readyReplicas"},
		{"apps/v1 StatefulSet", "not current", `"spec":{"replicas":3},"status":{` + observed + `"replicas":3,"readyReplicas":3,"currentReplicas":2,"currentRevision":"a","updateRevision":"a"}`, kstatus.Progressing, "currentReplicas"},
		{"apps/v1 StatefulSet", "rolling", `"spec":{"replicas":3},"status":{` + observed + stateful + `,"currentRevision":"a","updateRevision":"b"}`, kstatus.Progressing, "updateRevision"},
		{"apps/v1 StatefulSet", "partition", `"spec":{"replicas":3,"updateStrategy":{"rollingUpdate":{"partition":2}}},"status":{` + observed + `"replicas":3,"readyReplicas":3,"updatedReplicas":1,"currentRevision":"a","updateRevision":"b"}`, kstatus.Ready, ""},
		{"apps/v1 StatefulSet", "partition rolling", `"spec":{"replicas":3,"updateStrategy":{"rollingUpdate":{"partition":1}}},"status":{` + observed + `"replicas":3,"readyReplicas":3,"updatedReplicas":1,"currentRevision":"a","updateRevision":"b"}`, kstatus.Progressing, "updatedReplicas is 1, and 2"},
		{"apps/v1 StatefulSet", "on delete", `"spec":{"replicas":3,"updateStrategy":{"type":"OnDelete"}},"status":{` + observed + `"replicas":3,"readyReplicas":3,"currentReplicas":1,"currentRevision":"a","updateRevision":"b"}`, kstatus.Ready, ""},
		{"apps/v1 StatefulSet", "on delete, without Pods", `"spec":{"replicas":3,"updateStrategy":{"type":"OnDelete"}},"status":{` + observed + `"replicas":0}`, kstatus.Progressing, "status.replicas is 0, and 3 are wanted"},
		{"apps/v1 StatefulSet", "on delete, new", `"spec":{"replicas":3,"updateStrategy":{"type":"OnDelete"}},"status":{"replicas":0}`, kstatus.Progressing, "observedGeneration"},

		{"apps/v1 DaemonSet", "new", `"spec":{},"status":{"desiredNumberScheduled":0,"currentNumberScheduled":0,"numberReady":0}`, kstatus.Progressing, "observedGeneration is missing"},
		{"apps/v1 DaemonSet", "no node", `"spec":{},"status":{` + observed + `"desiredNumberScheduled":0}`, kstatus.Ready, ""},
		{"apps/v1 DaemonSet", "done", `"spec":{},"status":{` + observed + `"desiredNumberScheduled":2,"currentNumberScheduled":2,"updatedNumberScheduled":2,"numberAvailable":2,"numberReady":2}`, kstatus.Ready, ""},
		{"apps/v1 DaemonSet", "not scheduled", `"spec":{},"status":{` + observed + `"desiredNumberScheduled":2,"currentNumberScheduled":1,"updatedNumberScheduled":2,"numberAvailable":2,"numberReady":2}`, kstatus.Progressing, "currentNumberScheduled"},
		{"apps/v1 DaemonSet", "not updated", `"spec":{},"status":{` + observed + `"desiredNumberScheduled":2,"currentNumberScheduled":2,"updatedNumberScheduled":1,"numberAvailable":2,"numberReady":2}`, kstatus.Progressing, "updatedNumberScheduled"},
		{"apps/v1 DaemonSet", "on delete", `"spec":{"updateStrategy":{"type":"OnDelete"}},"status":{` + observed + `"desiredNumberScheduled":2,"currentNumberScheduled":2,"updatedNumberScheduled":1,"numberAvailable":2,"numberReady":2}`, kstatus.Ready, ""},
		{"apps/v1 DaemonSet", "not available", `"spec":{},"status":{` + observed + `"desiredNumberScheduled":2,"currentNumberScheduled":2,"updatedNumberScheduled":2,"numberAvailable":1,"numberReady":2}`, kstatus.Progressing, "numberAvailable"},
		{"apps/v1 DaemonSet", "not ready", `"spec":{},"status":{` + observed + `"desiredNumberScheduled":2,"currentNumberScheduled":2,"updatedNumberScheduled":2,"numberAvailable":2,"numberReady":1}`, kstatus.Progressing, "numberReady"},

		{"batch/v1 Job", "new", `"spec":{},"status":{}`, kstatus.Progressing, "Complete"},
		{"batch/v1 Job", "running", `"spec":{},"status":{"active":1,"startTime":"2026-01-01T00:00:00Z"}`, kstatus.Progressing, ""},
		{"batch/v1 Job", "done", `"spec":{},"status":{"conditions":[{"type":"Complete","status":"True"}]}`, kstatus.Ready, "Complete"},
		{"batch/v1 Job", "not done", `"spec":{},"status":{"conditions":[{"type":"Complete","status":"False"}]}`, kstatus.Progressing, "condition Complete is False"},
		{"batch/v1 Job", "suspended", `"spec":{},"status":{"conditions":[{"type":"Suspended","status":"True"}]}`, kstatus.Ready, "Suspended"},
		{"batch/v1 Job", "failed", `"spec":{},"status":{"conditions":[{"type":"Failed","status":"True","reason":"BackoffLimitExceeded"}]}`, kstatus.Failed, "BackoffLimitExceeded"},
		{"batch/v1 CronJob", "new", `"spec":{},"status":{}`, kstatus.Ready, ""},

		{"v1 Pod", "new", `"spec":{},"status":{}`, kstatus.Progressing, "status.phase is empty"},
		{"v1 Pod", "unschedulable", `"spec":{},"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable"}]}`, kstatus.Progressing, "Unschedulable"},
		{"v1 Pod", "pending", `"spec":{},"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"True"}]}`, kstatus.Progressing, "status.phase is Pending"},
		{"v1 Pod", "running", `"spec":{},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False"}]}`, kstatus.Progressing, "status.phase is Running"},
		{"v1 Pod", "ready", `"spec":{},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}`, kstatus.Ready, "condition Ready is True"},
		{"v1 Pod", "ready, not running", `"spec":{},"status":{"phase":"Unknown","conditions":[{"type":"Ready","status":"True"}]}`, kstatus.Progressing, "Unknown"},
		{"v1 Pod", "crashing", `"spec":{},"status":{"phase":"Running","containerStatuses":[{"name":"a"},{"name":"b","state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}`, kstatus.Failed, "container b"},
		{"v1 Pod", "crashing at first", `"spec":{},"status":{"phase":"Pending","initContainerStatuses":[{"name":"a","state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}`, kstatus.Failed, "container a"},
		{"v1 Pod", "waiting", `"spec":{},"status":{"phase":"Pending","containerStatuses":[{"name":"a","state":{"waiting":{"reason":"ImagePullBackOff"}}}]}`, kstatus.Progressing, ""},
		{"v1 Pod", "succeeded", `"spec":{},"status":{"phase":"Succeeded"}`, kstatus.Ready, ""},
		{"v1 Pod", "failed", `"spec":{},"status":{"phase":"Failed","reason":"Evicted","message":"memory"}`, kstatus.Failed, "the Pod failed: Evicted: memory"},

		{"v1 Service", "internal", `"spec":{"type":"ClusterIP"},"status":{}`, kstatus.Ready, ""},
		{"v1 Service", "no address", `"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{}}`, kstatus.Progressing, "no address"},
		{"v1 Service", "address", `"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"}]}}`, kstatus.Ready, ""},
		{"v1 Service", "addresses", `"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"},{"ip":"1.2.3.5"}]}}`, kstatus.Ready, ""},
		{"v1 PersistentVolumeClaim", "new", `"spec":{},"status":{}`, kstatus.Progressing, "status.phase is empty"},
		{"v1 PersistentVolumeClaim", "pending", `"spec":{},"status":{"phase":"Pending"}`, kstatus.Progressing, "Pending"},
		{"v1 PersistentVolumeClaim", "bound", `"spec":{},"status":{"phase":"Bound"}`, kstatus.Ready, "Bound"},
		{"v1 PersistentVolumeClaim", "lost", `"spec":{},"status":{"phase":"Lost"}`, kstatus.Failed, "Lost"},
		{"v1 PersistentVolume", "new", `"spec":{},"status":{}`, kstatus.Progressing, "empty"},
		{"v1 PersistentVolume", "available", `"spec":{},"status":{"phase":"Available"}`, kstatus.Ready, ""},
		{"v1 PersistentVolume", "bound", `"spec":{},"status":{"phase":"Bound"}`, kstatus.Ready, ""},
		{"v1 PersistentVolume", "released", `"spec":{},"status":{"phase":"Released"}`, kstatus.Ready, ""},
		{"v1 PersistentVolume", "failed", `"spec":{},"status":{"phase":"Failed"}`, kstatus.Failed, ""},
		{"policy/v1 PodDisruptionBudget", "new", `"spec":{},"status":{"desiredHealthy":0,"currentHealthy":0}`, kstatus.Progressing, "observedGeneration is missing"},
		{"policy/v1 PodDisruptionBudget", "few", `"spec":{},"status":{` + observed + `"desiredHealthy":2,"currentHealthy":1}`, kstatus.Progressing, "currentHealthy is 1, and 2"},
		{"policy/v1 PodDisruptionBudget", "enough", `"spec":{},"status":{` + observed + `"desiredHealthy":2,"currentHealthy":3}`, kstatus.Ready, ""},
		{"networking.k8s.io/v1 Ingress", "new", `"spec":{},"status":{}`, kstatus.Ready, ""},
		{"v1 ConfigMap", "new", `"data":{}`, kstatus.Ready, ""},
		{"v1 Namespace", "new", `"status":{"phase":"Active"}`, kstatus.Ready, ""},

		{"apiextensions.k8s.io/v1 CustomResourceDefinition", "new", `"spec":{}`, kstatus.Progressing, "Established"},
		{"apiextensions.k8s.io/v1 CustomResourceDefinition", "installing", `"status":{"conditions":[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"False","reason":"Installing"}]}`, kstatus.Progressing, "Installing"},
		{"apiextensions.k8s.io/v1 CustomResourceDefinition", "established", `"status":{"conditions":[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}]}`, kstatus.Ready, ""},
		{"apiextensions.k8s.io/v1 CustomResourceDefinition", "names", `"status":{"conditions":[{"type":"NamesAccepted","status":"False","reason":"ListKindConflict"}]}`, kstatus.Failed, "ListKindConflict"},
		{"apiextensions.k8s.io/v1 CustomResourceDefinition", "other names", `"status":{"conditions":[{"type":"NamesAccepted","status":"False"},{"type":"Established","status":"True"}]}`, kstatus.Ready, ""},
		{"apiregistration.k8s.io/v1 APIService", "new", `"spec":{}`, kstatus.Progressing, "Available"},
		{"apiregistration.k8s.io/v1 APIService", "down", `"status":{"conditions":[{"type":"Available","status":"False","reason":"MissingEndpoints"}]}`, kstatus.Progressing, "MissingEndpoints"},
		{"apiregistration.k8s.io/v1 APIService", "up", `"status":{"conditions":[{"type":"Available","status":"True"}]}`, kstatus.Ready, ""},

		{"example.com/v1 Widget", "no status", `"spec":{}`, kstatus.Ready, "no condition Ready"},
		{"example.com/v1 Widget", "ready", `"status":{"observedGeneration":2,"conditions":[{"type":"Ready","status":"True","reason":"Up"}]}`, kstatus.Ready, "Up"},
		{"example.com/v1 Widget", "not ready", `"status":{"conditions":[{"type":"Ready","status":"False","message":"no disk"}]}`, kstatus.Progressing, "no disk"},
		{"example.com/v1 Widget", "a long message", `"status":{"conditions":[{"type":"Ready","status":"False","message":"` + strings.Repeat("x", 300) + `"}]}`, kstatus.Progressing, ": " + strings.Repeat("x", 256) + "..."},
		{"example.com/v1 Widget", "unknown", `"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}`, kstatus.Progressing, "Unknown"},
		{"example.com/v1 Widget", "old status", `"status":{"observedGeneration":1,"conditions":[{"type":"Ready","status":"True"}]}`, kstatus.Progressing, "observedGeneration is 1"},
		{"example.com/v1 Widget", "old condition", `"status":{"conditions":[{"type":"Ready","status":"True","observedGeneration":1}]}`, kstatus.Progressing, "for an older generation"},
		{"example.com/v1 Widget", "condition", `"status":{"conditions":[{"type":"Ready","status":"True","observedGeneration":2}]}`, kstatus.Ready, ""},
		{"example.com/v1 Widget", "beside an old condition", `"status":{"conditions":[{"type":"Synced","status":"True","observedGeneration":1},{"type":"Ready","status":"True"}]}`, kstatus.Progressing, "for an older generation"},
		{"example.com/v1 Widget", "beside a present condition", `"status":{"conditions":[{"type":"Synced","status":"True","observedGeneration":2},{"type":"Old","status":"True","observedGeneration":1},{"type":"Ready","status":"True"}]}`, kstatus.Ready, ""},
		{"example.com/v1 Widget", "stalled beside an old condition", `"status":{"conditions":[{"type":"Synced","status":"True","observedGeneration":1},{"type":"Stalled","status":"True"},{"type":"Ready","status":"False"}]}`, kstatus.Progressing, "condition Ready"},
		{"example.com/v1 Widget", "the first counts", `"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"Ready","status":"True"}]}`, kstatus.Progressing, ""},
		{"example.com/v1 Widget", "reconciling", `"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"Reconciling","status":"True","reason":"Rolling"}]}`, kstatus.Progressing, "Rolling"},
		{"example.com/v1 Widget", "not reconciling", `"status":{"conditions":[{"type":"Reconciling","status":"False"},{"type":"Stalled","status":"False"},{"type":"Ready","status":"True"}]}`, kstatus.Ready, ""},
		{"example.com/v1 Widget", "stalled", `"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"Stalled","status":"True","reason":"BadSpec"}]}`, kstatus.Failed, "BadSpec"},
		{"example.com/v1 Widget", "was stalled", `"status":{"conditions":[{"type":"Stalled","status":"True","observedGeneration":1},{"type":"Ready","status":"False","observedGeneration":1}]}`, kstatus.Progressing, "condition Ready"},
		{"example.com/v1 Deployment", "another group", `"spec":{}`, kstatus.Ready, ""},
		{"apps/v1 Deployment", "stalled", `"spec":{},"status":{` + observed + `"conditions":[{"type":"Stalled","status":"True"}]}`, kstatus.Failed, "Stalled"},
		{"v1 Pod", "float", `"status":{"observedGeneration":2.0,"phase":"Succeeded"}`, kstatus.Ready, ""},
	} {
		apiVersion, kind, _ := strings.Cut(tt.kind, " ")
		t.Run(kind+"/"+tt.name, func(t *testing.T) {
			u := object(t, apiVersion, kind, tt.content)
			before := u.DeepCopy()
			state, reason := kstatus.Of(u)
			if state != tt.want || !strings.Contains(reason, tt.reason) || reason == "" {
				t.Errorf("%s: %q, want %s: %q", state, reason, tt.want, tt.reason)
			}
			if fmt.Sprint(before) != fmt.Sprint(u) {
				t.Error("Of changes the object")
			}
			typed, err := scheme.Scheme.New(schema.FromAPIVersionAndKind(apiVersion, kind))
			if err != nil {
				return // the tests have no type for it
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed); err != nil {
				t.Fatal(err)
			}
			typed.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			if strings.Contains(tt.content, "Stalled") || tt.name == "float" {
				return // the type has no such field, or another one
			}
			if state, reason := kstatus.Of(typed.(metav1.Object)); state != tt.want || !strings.Contains(reason, tt.reason) {
				t.Errorf("typed: %s: %q, want %s: %q", state, reason, tt.want, tt.reason)
			}
		})
	}
}

// Pod is a kind of another author that has the name of one of Kubernetes.
type Pod struct{ metav1.ObjectMeta }

// Objects in other forms.
func TestOfForms(t *testing.T) {
	deleted := named(t, "one", metav1.ConditionTrue)
	deleted.Object["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	waiting := deleted.DeepCopy()
	waiting.SetFinalizers([]string{"example.com/disk", "example.com/more"})
	typed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.Now())}}
	for _, tt := range []struct {
		name   string
		object metav1.Object
		want   kstatus.State
		reason string
	}{
		{"nil", nil, kstatus.Progressing, "the object is absent"},
		{"nil pointer", (*corev1.Pod)(nil), kstatus.Progressing, "the object is absent"},
		{"deleted", deleted, kstatus.Terminating, "the object is being deleted"},
		{"waits", waiting, kstatus.Terminating, "the object is being deleted, and waits for the finalizer example.com/disk"},
		{"typed", typed, kstatus.Terminating, "the object is being deleted"},
		{"metadata", &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}, kstatus.Unknown, "the object has metadata only"},
		{"no pointer", struct{ metav1.Object }{&metav1.ObjectMeta{}}, kstatus.Unknown, "read the object as JSON: ToUnstructured requires a non-nil pointer to an object, got struct { v1.Object }"},
		{"another's type", &Pod{}, kstatus.Ready, "the object has no condition Ready"},
		{"a kind", &appsv1.Deployment{TypeMeta: metav1.TypeMeta{Kind: "Widget", APIVersion: "example.com/v1"}}, kstatus.Ready, "the object has no condition Ready"},
	} {
		if state, reason := kstatus.Of(tt.object); state != tt.want || reason != tt.reason {
			t.Errorf("%s: %s: %q, want %s: %q", tt.name, state, reason, tt.want, tt.reason)
		}
	}
}

// Rules decide for their kinds alone, after the rules of all kinds.
func TestRules(t *testing.T) {
	gateway := schema.GroupKind{Group: "example.com", Kind: "Gateway"}
	answer := func(state kstatus.State) kstatus.Rule {
		return func(obj metav1.Object) (kstatus.State, string) { return state, "of " + obj.GetName() + "\x1b" }
	}
	rules := kstatus.Rules{
		gateway:                             kstatus.AllTrue("Accepted", "Programmed"),
		{Kind: "ConfigMap"}:                 answer(kstatus.Failed),
		{Kind: "Secret"}:                    answer("Fine"),
		{Kind: "Pod"}:                       nil,
		{Group: "apps", Kind: "Deployment"}: answer(kstatus.Ready),
	}
	const accepted = `{"type":"Accepted","status":"True","observedGeneration":2}`
	for _, tt := range []struct {
		name   string
		object metav1.Object
		want   kstatus.State
		reason string
	}{
		{"no conditions", object(t, "example.com/v1", "Gateway", `"spec":{}`), kstatus.Progressing, "the object has no condition Accepted"},
		{"one of two", object(t, "example.com/v1", "Gateway", `"status":{"conditions":[`+accepted+`]}`), kstatus.Progressing, "the object has no condition Programmed"},
		{"one is False", object(t, "example.com/v1", "Gateway", `"status":{"conditions":[`+accepted+`,{"type":"Programmed","status":"False","reason":"NoAddress"}]}`), kstatus.Progressing, "condition Programmed is False: NoAddress"},
		{"one is old", object(t, "example.com/v1", "Gateway", `"status":{"conditions":[`+accepted+`,{"type":"Programmed","status":"True","observedGeneration":1}]}`), kstatus.Progressing, "condition Programmed is True for an older generation"},
		{"both", object(t, "example.com/v1", "Gateway", `"status":{"conditions":[`+accepted+`,{"type":"Programmed","status":"True"}]}`), kstatus.Ready, "True conditions: Accepted, Programmed"},
		{"both, and stalled", object(t, "example.com/v1", "Gateway", `"status":{"conditions":[`+accepted+`,{"type":"Programmed","status":"True"},{"type":"Stalled","status":"True"}]}`), kstatus.Failed, "condition Stalled is True"},
		{"both, of an old generation", object(t, "example.com/v1", "Gateway", `"status":{"observedGeneration":1,"conditions":[`+accepted+`,{"type":"Programmed","status":"True"}]}`), kstatus.Progressing, "status.observedGeneration is 1, and the generation is 2"},
		{"a generation as text", object(t, "example.com/v1", "Gateway", `"status":{"observedGeneration":"2","conditions":[`+accepted+`,{"type":"Programmed","status":"True"}]}`), kstatus.Ready, "True conditions: Accepted, Programmed"},
		{"an old generation as text", object(t, "example.com/v1", "Gateway", `"status":{"observedGeneration":"1","conditions":[`+accepted+`,{"type":"Programmed","status":"True"}]}`), kstatus.Progressing, "status.observedGeneration is 1, and the generation is 2"},
		{"a generation as other text", object(t, "example.com/v1", "Gateway", `"status":{"observedGeneration":"5f8b7c","conditions":[`+accepted+`,{"type":"Programmed","status":"True"}]}`), kstatus.Unknown, "status.observedGeneration has the wrong type"},
		{"a generation as text, without a rule", object(t, "example.com/v1", "Widget", `"status":{"observedGeneration":"2"}`), kstatus.Ready, "the object has no condition Ready"},
		{"an old generation as text, without a rule", object(t, "example.com/v1", "Widget", `"status":{"observedGeneration":"1"}`), kstatus.Progressing, "status.observedGeneration is 1, and the generation is 2"},
		{"a wrong status of a type", object(t, "example.com/v1", "Gateway", `"status":{"conditions":[{"type":"Accepted","status":true}]}`), kstatus.Unknown, "status.conditions[].status has the wrong type"},
		{"a wrong reason of a type", object(t, "example.com/v1", "Gateway", `"status":{"conditions":[`+accepted+`,{"type":"Programmed","status":"True","reason":1}]}`), kstatus.Unknown, "status.conditions[].reason has the wrong type"},
		{"metadata", &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "Gateway", APIVersion: "example.com/v1"}}, kstatus.Unknown, "the object has metadata only"},
		{"another kind", named(t, "one", "False"), kstatus.Progressing, "condition Ready is False: R"},
		{"typed", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, kstatus.Failed, `of one\x1b`},
		{"no state", &corev1.Secret{}, kstatus.Unknown, `the rule of Secret returns the state "Fine", which is none of kstatus`},
		{"a nil Rule", object(t, "v1", "Pod", `"status":{"phase":"Succeeded"}`), kstatus.Ready, "the Pod succeeded"},
		{"replaced", &appsv1.Deployment{}, kstatus.Ready, `of \x1b`},
		{"no kind", &Pod{}, kstatus.Unknown, "no rule can be chosen: the object has no apiVersion and kind, and *kstatus_test.Pod is the type of no built-in kind: set them"},
	} {
		if state, reason := rules.Of(tt.object); state != tt.want || reason != tt.reason {
			t.Errorf("%s: %s: %q, want %s: %q", tt.name, state, reason, tt.want, tt.reason)
		}
	}
	wrong := object(t, "example.com/v1", "Gateway", `"status":{"conditions":[{"type":"Accepted","status":"True","reason":1}]}`)
	if state, reason := kstatus.AllTrue("Accepted")(wrong); state != kstatus.Unknown || reason != "status.conditions[].reason has the wrong type" {
		t.Errorf("AllTrue of a wrong reason: %s: %q", state, reason)
	}
	c := rules.Condition(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, &corev1.Secret{})
	if c.Reason != "Failed" || !strings.Contains(c.Message, "0 of 2 objects are ready; ConfigMap one: of one") {
		t.Errorf("the condition is %+v", c)
	}
}

// Each Go type of client-go's scheme has a rule of its kind without naming it, and a type of an API group that the
// package does not know has none.
func TestKinds(t *testing.T) {
	types := 0
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		obj, ok := reflect.New(goType).Interface().(metav1.Object)
		if !ok || !strings.HasPrefix(goType.PkgPath(), "k8s.io/api/") {
			continue
		}
		types++
		rules := kstatus.Rules{gvk.GroupKind(): func(metav1.Object) (kstatus.State, string) { return kstatus.Failed, "by the rule" }}
		if state, reason := rules.Of(obj); state != kstatus.Failed || reason != "by the rule" {
			t.Errorf("%s as a %s: %s: %s, want the state of its rule", gvk, goType.PkgPath(), state, reason)
		}
	}
	if types < 100 {
		t.Errorf("the scheme has %d types of objects, want at least 100", types)
	}
	rules := kstatus.Rules{{Group: "testapigroup.apimachinery.k8s.io", Kind: "Carp"}: kstatus.AllTrue("Ready")}
	if state, reason := rules.Of(&carpv1.Carp{}); state != kstatus.Unknown || !strings.HasPrefix(reason, "no rule can be chosen") {
		t.Errorf("a Carp: %s: %s, want Unknown, because no rule can be chosen", state, reason)
	}
}

// A condition counts the objects, and shows the three worst ones in any order of them.
func TestCondition(t *testing.T) {
	yes, no, failed := named(t, "yes", "True"), named(t, "no", "False"), object(t, "v1", "Pod", `"status":{"phase":"Failed"}`)
	also := named(t, "also", "False")
	also.SetNamespace("")
	deleted := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job", DeletionTimestamp: new(metav1.Now())}}
	partial := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "partial"}}
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "pdb", Namespace: "a"}}
	for _, tt := range []struct {
		name    string
		objects []metav1.Object
		want    string
	}{
		{"none", nil, "True Ready 0 of 0 objects are ready"},
		{"all", []metav1.Object{yes, yes}, "True Ready 2 of 2 objects are ready"},
		{"absent", []metav1.Object{yes, nil}, "False Progressing 1 of 2 objects are ready; the object is absent"},
		{"typed", []metav1.Object{pdb}, "False Progressing 0 of 1 objects are ready; PodDisruptionBudget a/pdb: status.observedGeneration is missing"},
		{"deleted", []metav1.Object{deleted}, "False Progressing 0 of 1 objects are ready; Job job: the object is being deleted"},
		{"unknown", []metav1.Object{partial, yes}, "Unknown Unknown 1 of 2 objects are ready; PartialObjectMetadata partial: the object has metadata only"},
		{"progressing", []metav1.Object{partial, no, yes}, "False Progressing 1 of 3 objects are ready; Widget default/no: condition Ready is False: R; PartialObjectMetadata partial: the object has metadata only"},
		{"three", []metav1.Object{no, failed, also}, "False Failed 0 of 3 objects are ready; Pod default/one: the Pod failed; Widget also: condition Ready is False: R; Widget default/no: condition Ready is False: R"},
		{"more", []metav1.Object{no, partial, deleted, failed, also, yes}, "False Failed 1 of 6 objects are ready; Pod default/one: the Pod failed; Widget also: condition Ready is False: R; Widget default/no: condition Ready is False: R; and 2 more"},
	} {
		random := rand.New(rand.NewPCG(1, 2))
		for range 10 {
			random.Shuffle(len(tt.objects), func(i, j int) { tt.objects[i], tt.objects[j] = tt.objects[j], tt.objects[i] })
			c := kstatus.Condition(tt.objects...)
			if got := fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message); c.Type != "Ready" || got != tt.want {
				t.Errorf("%s: %s %s\nwant %s", tt.name, c.Type, got, tt.want)
			}
		}
	}
}
