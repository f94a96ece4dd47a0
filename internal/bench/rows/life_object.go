package rows

import (
	"context"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// The custom resource of the rows about lives.

const (
	widgetKind     = "Widget"
	widgetResource = "widgets"
)

func widgetVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "life.example.com", Version: "v1"}
}

type widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   widgetSpec   `json:"spec"`
	Status widgetStatus `json:"status,omitzero"`
}

type widgetSpec struct {
	Replicas int32  `json:"replicas"`
	Text     string `json:"text"`
}

type widgetStatus struct {
	Children   int32              `json:"children"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

type widgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []widget `json:"items"`
}

func (w *widget) DeepCopyObject() runtime.Object { return w.DeepCopy() }

// DeepCopy hides the DeepCopy of the embedded ObjectMeta.
func (w *widget) DeepCopy() *widget {
	c := *w
	w.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Status.Conditions = nil
	for _, condition := range w.Status.Conditions {
		c.Status.Conditions = append(c.Status.Conditions, *condition.DeepCopy())
	}
	return &c
}

func (l *widgetList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = nil
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopy())
	}
	return &c
}

// widgetScheme returns a scheme with Widget and the built-in kinds.
func widgetScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		return nil, err
	}
	s.AddKnownTypeWithName(widgetVersion().WithKind(widgetKind), &widget{})
	s.AddKnownTypeWithName(widgetVersion().WithKind(widgetKind+"List"), &widgetList{})
	metav1.AddToGroupVersion(s, widgetVersion())
	return s, nil
}

// widgetClient is a typed client like client-gen's.
type widgetClient = gentype.ClientWithList[*widget, *widgetList]

func newWidgetClient(config *rest.Config, namespace string) (*widgetClient, error) {
	s, err := widgetScheme()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = new(widgetVersion())
	config.NegotiatedSerializer = serializer.NewCodecFactory(s).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return gentype.NewClientWithList(widgetResource, client, runtime.NewParameterCodec(s), namespace,
		func() *widget { return &widget{} }, func() *widgetList { return &widgetList{} }), nil
}

// installWidgets installs the CustomResourceDefinition.
func installWidgets(ctx context.Context, config *rest.Config) (uninstall func(context.Context) error, err error) {
	return installDefinition(ctx, config, widgetDefinition())
}

// installDefinition installs a CustomResourceDefinition.
func installDefinition(ctx context.Context, config *rest.Config, definition map[string]any) (uninstall func(context.Context) error, err error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	created, err := definitions.Create(ctx, &unstructured.Unstructured{Object: definition}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	uninstall = func(ctx context.Context) error {
		err := definitions.Delete(ctx, created.GetName(), metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if err := established(ctx, definitions, created); err != nil {
		return nil, errors.Join(err, uninstall(ctx))
	}
	return uninstall, nil
}

func established(ctx context.Context, definitions dynamic.ResourceInterface, created *unstructured.Unstructured) error {
	w, err := definitions.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, created.GetName()).String(),
		ResourceVersion: created.GetResourceVersion(),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		definition, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			break
		}
		conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				return nil
			}
		}
	}
	return fmt.Errorf("%s was not established: %w", created.GetName(), context.Cause(ctx))
}

func widgetDefinition() map[string]any {
	object := func(properties map[string]any, more map[string]any) map[string]any {
		o := map[string]any{"type": "object", "properties": properties}
		maps.Copy(o, more)
		return o
	}
	text, number := map[string]any{"type": "string"}, map[string]any{"type": "integer"}
	condition := object(map[string]any{
		"type": text, "status": text, "reason": text, "message": text, "lastTransitionTime": text, "observedGeneration": number,
	}, map[string]any{"required": []any{"type"}})
	version := widgetVersion()
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": widgetResource + "." + version.Group},
		"spec": map[string]any{
			"group": version.Group,
			"scope": "Namespaced",
			"names": map[string]any{"kind": widgetKind, "listKind": widgetKind + "List", "plural": widgetResource, "singular": "widget"},
			"versions": []any{map[string]any{
				"name": version.Version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": object(map[string]any{
					"spec": object(map[string]any{"replicas": number, "text": text}, nil),
					"status": object(map[string]any{
						"children": number,
						"conditions": map[string]any{
							"type": "array", "items": condition,
							"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
						},
					}, nil),
				}, nil)},
			}},
		},
	}
}
