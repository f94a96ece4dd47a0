// Package pauses finds children that a user wants to pause in vain.
package pauses

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Line is the line of log.
const Line = "The annotation paused of a child does not stop the controller of its owner: set it on the owner"

// maxText bounds the owner in a line. The API server checks only that its kind and name are not empty.
const maxText = 600

// Children returns a handler of children that logs a line when a user pauses one, at most one in 10s.
func Children(a pause.Annotations, logger func() klog.Logger) *Handler {
	return &Handler{a, logger, flowcontrol.NewTokenBucketPassiveRateLimiter(0.1, 5)}
}

// Handler is a cache.ResourceEventHandler.
type Handler struct {
	annotations pause.Annotations
	logger      func() klog.Logger
	lines       flowcontrol.PassiveRateLimiter
}

// MetadataAlone reports that the handler reads only metadata. See package headers.
func (*Handler) MetadataAlone() bool { return true }

// OnAdd implements cache.ResourceEventHandler.
func (*Handler) OnAdd(any, bool) {}

// OnDelete implements cache.ResourceEventHandler.
func (*Handler) OnDelete(any) {}

// OnUpdate implements cache.ResourceEventHandler.
func (h *Handler) OnUpdate(former, obj any) {
	before, ok := former.(metav1.Object)
	after, ok2 := obj.(metav1.Object)
	if !ok || !ok2 || h.annotations.Paused(before) || !h.annotations.Paused(after) {
		return
	}
	owner := metav1.GetControllerOfNoCopy(after)
	if owner == nil || !h.lines.TryAccept() {
		return
	}
	h.logger().Info(Line, "namespace", after.GetNamespace(), "name", after.GetName(), "owner", kube.Printable(owner.Kind+" "+owner.Name, maxText))
}
