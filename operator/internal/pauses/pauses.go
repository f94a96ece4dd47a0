// Package pauses finds children that a user wants to pause in vain.
package pauses

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/objects"
)

// Line is the line of log.
const Line = "The annotation paused of a child does not stop the controller of its owner: set it on the owner"

// maxText bounds the owner in a line. Of a reference, the API server checks only that the kind and the name are not empty.
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
	if owner := ownerOf(after); owner != "" && h.lines.TryAccept() {
		h.logger().Info(Line, "namespace", after.GetNamespace(), "name", after.GetName(), "owner", kube.Printable(owner, maxText))
	}
}

// ownerOf returns a text with the owner of a child, which a child of Elsewhere has in its marks. It is "" for an object
// without an owner.
func ownerOf(child metav1.Object) string {
	if owner := metav1.GetControllerOfNoCopy(child); owner != nil {
		return owner.Kind + " " + owner.Name
	}
	if uid := child.GetLabels()[objects.OwnerUID]; uid != "" {
		return cmp.Or(child.GetAnnotations()[objects.OwnerName], uid)
	}
	return ""
}
