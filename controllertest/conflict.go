package controllertest

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// Conflict is no forged response. Another writer changes the object right before the operation,
// and the API server rejects the operation because of its resource version. So the controller
// also gets the event of that write, as it does in production. An apply without a resource
// version conflicts only if another manager owns its fields, which no fault does.

// conditional reports whether the API server rejects a write if the object has changed since the
// version that the write contains.
func conditional(op *fault.Op) bool {
	var body struct {
		Metadata      struct{ ResourceVersion string }
		Preconditions struct{ ResourceVersion string }
	}
	switch {
	case op.Verb == "patch" && op.ContentType == string(types.JSONPatchType):
		var patch []struct {
			Op   string `json:"op"`
			Path string `json:"path"`
		}
		_ = json.Unmarshal(op.Body, &patch)
		for _, p := range patch {
			if p.Op == "test" && p.Path == "/metadata/resourceVersion" {
				return true
			}
		}
		return false
	case op.Verb == "update", op.Verb == "patch", op.Verb == "apply":
		_ = yaml.Unmarshal(op.Body, &body)
		return body.Metadata.ResourceVersion != ""
	case op.Verb == "delete":
		_ = yaml.Unmarshal(op.Body, &body)
		return body.Preconditions.ResourceVersion != ""
	}
	return false
}

// contend is the other writer of a conflict. Its two writes leave the object as it was, with a
// later version.
func (r *run) contend(key objectKey) {
	end := r.begin()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), r.x.options.ConvergeTimeout)
	defer cancel()
	client := r.x.dyn.Resource(r.x.observer.gvr(key.resource)).Namespace(key.namespace)
	for _, value := range []string{`"true"`, "null"} {
		_, err := client.Patch(ctx, key.name, mergePatch, []byte(`{"metadata":{"annotations":{"`+contendAnnotation+`":`+value+`}}}`), metav1.PatchOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return // the operation gets this response too
		case err != nil:
			r.doubt("the other writer of a conflict: %v", err)
			return
		}
	}
}

const contendAnnotation = "controllertest.controllerkit.github.io/contended"

// misfit returns why a fault of a plan can never happen, or "".
func (j injection) misfit() string {
	verb, rest, _ := strings.Cut(j.at, " ")
	op := operation{external: verb == "external", conditional: verb != "create" && verb != "external"}
	if op.external {
		verb, _, _ = strings.Cut(rest, " ")
	}
	op.write = verb != "get" && verb != "list"
	switch {
	case j.kind == Conflict && !j.kind.fits(op):
		return "a conflict needs a write with a resourceVersion, which a create, a read and an external call do not have: choose an update, or a patch, an apply or a delete with a resourceVersion"
	case op.external && op.write && j.kind != SlowRenewal && !j.kind.fits(op):
		return "an external call has no response of the API server: choose another kind or operation"
	}
	return ""
}
