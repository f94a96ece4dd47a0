package controllertest

import (
	"context"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// asksLocked takes in a request of the user, which the controller may see before
// the user has the answer: an object is the user's before it is created, and not
// any more before it is deleted.
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
		r.owned[key] = &obj
		delete(r.unwanted, key)
	}
}

// asUser takes in the answer to a request of the user: what the user creates is
// what the user may delete.
func (r *run) asUser(op *fault.Op, status int, body []byte) {
	r.answered(op, status, body)
	if op.Verb == "delete" && status == http.StatusNotFound {
		status = http.StatusOK // it is what the user wanted
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
	}
	r.touchLocked()
}

// usersLocked names what the user has made and not deleted, as plans do.
func (r *run) usersLocked() []string {
	var names []string
	for key := range r.owned {
		if name := key.resource + "/" + r.maskLocked(key.name); len(r.x.scenario.User) == 0 || slices.Contains(r.x.scenario.User, name) {
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
	return r.x.dyn.Resource(r.x.observer.gvr(key.resource)).Namespace(key.namespace).Delete(ctx, key.name, metav1.DeleteOptions{})
}

func (r *run) ownedLocked(name string) (objectKey, *unstructured.Unstructured) {
	for key, obj := range r.owned {
		if key.resource+"/"+r.maskLocked(key.name) == name {
			return key, obj
		}
	}
	return objectKey{}, nil
}

// interfere is a user who acts at the worst moment.
func (r *run) interfere(ctx context.Context, kind Kind, key objectKey, obj *unstructured.Unstructured) {
	end := r.begin()
	defer end()
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
	// The observer may not have seen the user's last change yet.
	latest, err := client.Get(ctx, key.name, metav1.GetOptions{})
	if err == nil {
		obj, err = latest, r.deleteAsUser(ctx, key)
	}
	r.interfered(err)
	if kind == UserDelete || err != nil {
		return
	}
	recreated := r.begin()
	r.goes(func() {
		defer recreated()
		ctx, cancel := context.WithTimeout(context.Background(), r.x.options.Settle)
		defer cancel()
		if !r.awaitGone(ctx, client, obj) {
			return // a finding of the step: the object stays
		}
		r.mu.Lock()
		unwanted := r.unwanted[key]
		if !unwanted {
			r.owned[key] = obj
		}
		r.mu.Unlock()
		if unwanted {
			return // the script has deleted it too
		}
		_, err := client.Create(ctx, fresh(obj), metav1.CreateOptions{})
		r.interfered(err)
		r.mu.Lock()
		unwanted = r.unwanted[key]
		r.mu.Unlock()
		if unwanted { // meanwhile
			r.interfered(r.deleteAsUser(ctx, key))
		}
	})
}

const editAnnotation = "controllertest.controllerkit.github.io/edited"

func (r *run) interfered(err error) {
	if err != nil && !apierrors.IsNotFound(err) {
		r.find(Health, "the user of the plan: %v", err)
	}
}

// awaitGone waits until an object is gone. It reports false if the run or ctx is
// over before.
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
		if sleep(ctx, changed, r.x.options.Settle) != nil {
			return false
		}
	}
}

// fresh is the object as its user would create it again.
func fresh(obj *unstructured.Unstructured) *unstructured.Unstructured {
	o := obj.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", "selfLink"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	delete(o.Object, "status")
	return o
}
