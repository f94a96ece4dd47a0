// Package fakeserver is as much of an API server as the unit tests of owner and external
// need: the ConfigMaps of one namespace, with resource versions and with JSON patches
// whose tests can fail. The tests on a real API server check what it claims.
package fakeserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Server is the client of the namespace and the server behind it.
type Server struct {
	Objects map[string]*corev1.ConfigMap
	Version int                                        // the last resource version
	Writes  int                                        // requests that changed an object
	Do      func(name string, call func() error) error // wraps each request; nil means none
	Mangle  func(*corev1.ConfigMap) *corev1.ConfigMap  // a mutating webhook; nil means none
}

// New returns a Server with copies of the objects.
func New(objects ...*corev1.ConfigMap) *Server {
	s := &Server{Objects: map[string]*corev1.ConfigMap{}}
	for _, obj := range objects {
		s.Put(obj)
	}
	return s
}

// Settings returns an object as a cache has it: default/settings in version 1.
func Settings(change ...func(*corev1.ConfigMap)) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings", UID: "uid-1", ResourceVersion: "1"}}
	for _, f := range change {
		f(cm)
	}
	return cm
}

// Put stores a copy of obj with a new version and returns it.
func (s *Server) Put(obj *corev1.ConfigMap) *corev1.ConfigMap {
	s.Version++
	obj = obj.DeepCopy()
	obj.ResourceVersion = strconv.Itoa(s.Version)
	s.Objects[obj.Name] = obj
	return obj
}

func (s *Server) request(name string, call func() error) error {
	if s.Do == nil {
		return call()
	}
	return s.Do(name, call)
}

// Get reads an object.
func (s *Server) Get(_ context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error) {
	if opts.ResourceVersion != "" {
		return nil, errors.New("not a read from etcd")
	}
	var live *corev1.ConfigMap
	err := s.request("get "+name, func() error {
		obj := s.Objects[name]
		if obj == nil {
			return apierrors.NewNotFound(corev1.Resource("configmaps"), name)
		}
		live = obj.DeepCopy()
		return nil
	})
	return live, err
}

// Patch applies a JSON patch.
func (s *Server) Patch(_ context.Context, name string, pt types.PatchType, data []byte, _ metav1.PatchOptions, sub ...string) (*corev1.ConfigMap, error) {
	if pt != types.JSONPatchType || len(sub) > 0 {
		return nil, errors.New("unexpected patch")
	}
	var live *corev1.ConfigMap
	err := s.request("patch "+name, func() error {
		obj := s.Objects[name]
		if obj == nil {
			return apierrors.NewNotFound(corev1.Resource("configmaps"), name)
		}
		patch, err := jsonpatch.DecodePatch(data)
		if err != nil {
			return err
		}
		before, err := json.Marshal(obj)
		if err != nil {
			return err
		}
		after, err := patch.Apply(before)
		if err != nil { // as the API server responds to a patch that does not apply
			return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "", 0, false)
		}
		changed := &corev1.ConfigMap{}
		if err := json.Unmarshal(after, changed); err != nil {
			return err
		}
		if s.Mangle != nil {
			changed = s.Mangle(changed)
		}
		if !jsonpatch.Equal(before, after) {
			s.Writes++
			changed = s.Put(changed)
		}
		live = changed.DeepCopy()
		return nil
	})
	return live, err
}
