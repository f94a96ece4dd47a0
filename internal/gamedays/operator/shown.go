package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/operator"
)

// A Banner is for all websites of its namespace. Its definition need not be installed.
type Banner struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (b *Banner) DeepCopyObject() runtime.Object {
	c := &Banner{TypeMeta: b.TypeMeta}
	b.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return c
}

// shown reads what the ConfigMap of a website has as labels: the Banners of its namespace, an optional kind, and
// whether there is an account "sites", which is read without a right to list.
type shown struct {
	banners  *operator.Reader[*Banner]
	accounts *operator.Reader[*corev1.ServiceAccount]
}

func newShown(c *operator.Controller) *shown {
	return &shown{
		banners:  operator.Reads(c, schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "banners"}, operator.Reading[*Banner]{Optional: true}),
		accounts: operator.Reads(c, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), operator.Reading[*corev1.ServiceAccount]{Single: true, Names: []string{"sites"}}),
	}
}

func (s *shown) labels(ctx context.Context, namespace string) (map[string]string, error) {
	banners, err := s.banners.List(ctx, namespace, labels.Everything())
	if err != nil && !errors.Is(err, crd.ErrNotServed) {
		return nil, err
	}
	shown := map[string]string{}
	if names := namesOf(banners); len(names) > 0 {
		shown["banners"] = strings.Join(names, ".")
	}
	switch _, err := s.accounts.Get(ctx, namespace, "sites"); {
	case err == nil:
		shown["account"] = "sites"
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	return shown, nil
}

func namesOf(banners []*Banner) (names []string) {
	for _, b := range banners {
		names = append(names, b.Name)
	}
	slices.Sort(names)
	return names
}
