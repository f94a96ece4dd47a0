package controllertest

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/controllertest/internal/fields"
)

// asksLocked stores a request of the user. The controller may see its effect before the
// user has the response, so the user owns an object from the request to create it to
// the request to delete it.
func (r *run) asksLocked(op *fault.Op) {
	key := objectKey{op.Resource, op.Namespace, op.Name}
	switch {
	case op.Subresource != "":
		return
	case op.Verb == "delete":
		delete(r.owned, key)
		r.unwanted[key] = true
	case op.Verb == "update":
		delete(r.edited, key) // the script may take back what the plan's user has done
	}
	var obj unstructured.Unstructured
	if op.Verb == "create" && op.Subresource == "" && !op.Generated && op.Name != "" && !unobserved(op.Resource) &&
		r.owned[key] == nil && json.Unmarshal(op.Body, &obj.Object) == nil {
		r.owned[key], r.wrote[key] = &obj, &obj
		delete(r.unwanted, key)
	}
}

// wroteLocked returns the object as its user would create it again: the body of its
// creation, with the fields that the user wrote later, but without fields of the API
// server, admission and controllers.
func (r *run) wroteLocked(key objectKey, op *fault.Op, stored *unstructured.Unstructured) *unstructured.Unstructured {
	wrote := r.wrote[key]
	var body map[string]any
	if json.Unmarshal(op.Body, &body) != nil {
		_ = yaml.Unmarshal(op.Body, &body) // an apply; a JSON patch is no object
	}
	if wrote == nil || op.Verb == "create" {
		wrote = &unstructured.Unstructured{Object: body}
		if wrote.Object == nil {
			wrote = stored
		}
	} else {
		wrote = wrote.DeepCopy()
		for _, path := range r.writtenLocked(op, body) {
			fields.Copy(wrote.Object, stored.Object, path)
		}
	}
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"} {
		unstructured.RemoveNestedField(wrote.Object, "metadata", field)
	}
	wrote.SetGroupVersionKind(stored.GroupVersionKind()) // which typed clients do not send
	wrote.SetName(key.name)
	return wrote
}

// writtenLocked lists the paths of the fields that an update or a patch writes.
func (r *run) writtenLocked(op *fault.Op, body map[string]any) [][]string {
	switch {
	case op.Verb == "update":
		_, version := updated(op)
		return fields.Leaves(nil, r.versions[version], body)
	case op.ContentType != string(types.JSONPatchType):
		return fields.Leaves(nil, nil, body)
	}
	var patch []struct {
		Op   string `json:"op"`
		Path string `json:"path"`
	}
	_ = json.Unmarshal(op.Body, &patch) // the server has understood it
	var paths [][]string
	for _, p := range patch {
		if p.Op == "test" {
			continue
		}
		path := strings.Split(strings.TrimPrefix(p.Path, "/"), "/")
		for i := range path {
			path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(path[i])
		}
		paths = append(paths, path)
	}
	return paths
}

// asUser stores the response to a request of the user.
func (r *run) asUser(op *fault.Op, status int, body []byte) {
	r.responded(op, status, body)
	if op.Verb == "delete" && status == http.StatusNotFound {
		status = http.StatusOK // the object is absent, as desired
	}
	if op.Verb == "create" && status > 299 && status != http.StatusConflict {
		r.mu.Lock()
		delete(r.owned, objectKey{op.Resource, op.Namespace, op.Name})
		r.mu.Unlock()
	}
	if !op.IsWrite() || op.Subresource != "" || status < 200 || status > 299 || unobserved(op.Resource) {
		return
	}
	var obj unstructured.Unstructured
	_ = json.Unmarshal(body, &obj.Object) // a Status has no name
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acted = r.step
	key := objectKey{op.Resource, op.Namespace, op.Name}
	switch {
	case op.Verb == "delete":
		delete(r.owned, key)
		r.unwanted[key] = true
	case obj.GetName() != "" && obj.GetKind() != "Status":
		key.name = obj.GetName()
		delete(r.unwanted, key)
		if r.owned[key] != nil || op.Verb == "create" || status == http.StatusCreated {
			r.owned[key] = &obj
		}
		if r.wrote[key] != nil || op.Verb == "create" || status == http.StatusCreated {
			r.wrote[key] = r.wroteLocked(key, op, &obj)
		}
	}
	r.touchLocked()
}

// usersLocked returns the names of the user's objects, in the form of plans.
func (r *run) usersLocked() []string {
	var names []string
	for key := range r.owned {
		if name := key.resource + "/" + r.maskLocked(key.name); len(r.x.scenario.UserObjects) == 0 || slices.Contains(r.x.scenario.UserObjects, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (r *run) deleteAsUser(ctx context.Context, key objectKey) error {
	r.mu.Lock()
	delete(r.owned, key)
	r.mu.Unlock()
	return r.x.dyn.Resource(r.x.observer.gvr(key.resource)).Namespace(key.namespace).Delete(ctx, key.name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground), // which is not the default of every kind
	})
}

func (r *run) ownedLocked(name string) (_ objectKey, ok bool) {
	for key := range r.owned {
		if key.resource+"/"+r.maskLocked(key.name) == name {
			return key, true
		}
	}
	return objectKey{}, false
}

// interfere is an action of the plan's user. It goes on if the process whose request it
// comes before ends meanwhile.
func (r *run) interfere(kind Kind, key objectKey) {
	end := r.begin()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), r.x.options.ConvergeTimeout)
	defer cancel()
	client := r.x.dyn.Resource(r.x.observer.gvr(key.resource)).Namespace(key.namespace)
	if kind == UserEdit {
		edited, err := client.Patch(ctx, key.name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+editAnnotation+`":"true"}}}`), metav1.PatchOptions{})
		r.interfered(err)
		if err == nil {
			r.mu.Lock()
			r.edited[key] = edited.GetUID()
			r.mu.Unlock()
		}
		return
	}
	live, err := client.Get(ctx, key.name, metav1.GetOptions{})
	if err == nil {
		err = r.deleteAsUser(ctx, key)
	}
	r.interfered(err)
	if kind == UserDelete || err != nil {
		return
	}
	if _, err := client.Get(ctx, key.name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		r.recreate(ctx, client, key, live)
		return
	}
	recreated := r.begin()
	r.goes(func() {
		defer recreated()
		ctx, cancel := context.WithTimeout(context.Background(), r.x.options.ConvergeTimeout)
		defer cancel()
		if r.awaitGone(ctx, client, live) { // otherwise the step reports that the object stays
			r.recreate(ctx, client, key, live)
		}
	})
}

// recreate creates an object that the plan's user has deleted, as its user wrote it.
func (r *run) recreate(ctx context.Context, client dynamic.ResourceInterface, key objectKey, live *unstructured.Unstructured) {
	r.mu.Lock()
	unwanted, wrote := r.unwanted[key], r.wrote[key]
	if !unwanted {
		r.owned[key] = live
	}
	r.mu.Unlock()
	if unwanted {
		return // the script has deleted it too
	}
	_, err := client.Create(ctx, wrote, metav1.CreateOptions{})
	r.interfered(err)
	r.mu.Lock()
	unwanted = r.unwanted[key]
	r.mu.Unlock()
	if unwanted { // meanwhile
		r.interfered(r.deleteAsUser(ctx, key))
	}
}

const editAnnotation = "controllertest.controllerkit.github.io/edited"

// interfered judges the answer to a request of the plan's user. If the request did not reach
// the server in time, the run has no outcome.
func (r *run) interfered(err error) {
	switch {
	case err == nil || apierrors.IsNotFound(err):
	case unreached(err), errors.Is(err, context.DeadlineExceeded):
		r.doubt("the user of the plan: %v", err)
	default:
		r.find(Health, "the user of the plan: %v", err)
	}
}

// awaitGone waits until an object is deleted. If the run or ctx ends first, it returns
// false.
func (r *run) awaitGone(ctx context.Context, client dynamic.ResourceInterface, obj *unstructured.Unstructured) bool {
	for {
		r.mu.Lock()
		changed, over := r.changed, r.over
		r.mu.Unlock()
		now, err := client.Get(ctx, obj.GetName(), metav1.GetOptions{})
		switch {
		case over:
			return false
		case apierrors.IsNotFound(err) || err == nil && now.GetUID() != obj.GetUID():
			return true
		}
		if sleep(ctx, changed, r.x.options.ConvergeTimeout) != nil {
			return false
		}
	}
}
