package page

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var boxVersion = schema.GroupVersion{Group: "box.example.com", Version: "v1"}

const boxFinalizer = "box.example.com/lid"

// Box is the kind of the page.
type Box struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Items []string `json:"items,omitempty"`
		Text  string   `json:"text,omitempty"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64              `json:"observedGeneration,omitempty"`
		Conditions         []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// DeepCopy stands for a generated method.
func (b *Box) DeepCopy() *Box { return &Box{} }

// DeepCopyObject implements runtime.Object.
func (b *Box) DeepCopyObject() runtime.Object { return b.DeepCopy() }
