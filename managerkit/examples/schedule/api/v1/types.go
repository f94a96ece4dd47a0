// Package v1 has the kind Schedule of the group jobs.example.com.
package v1

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kind.
var GroupVersion = schema.GroupVersion{Group: "jobs.example.com", Version: "v1"}

// AddToScheme adds the kind to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Schedule{}, &ScheduleList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Schedule runs a Job at the times of a cron expression, one after the other.
type Schedule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ScheduleSpec   `json:"spec"`
	Status ScheduleStatus `json:"status,omitempty"`
}

// ScheduleSpec is the desired state.
type ScheduleSpec struct {
	Cron           string          `json:"cron"` // minute, hour, day of month, month and day of week, in UTC
	Suspend        bool            `json:"suspend,omitempty"`
	KeepSuccessful int32           `json:"keepSuccessful"` // the number of successful Jobs to keep
	KeepFailed     int32           `json:"keepFailed"`
	Template       batchv1.JobSpec `json:"template"`
}

// ScheduleStatus is the observed state.
type ScheduleStatus struct {
	Active     []string           `json:"active,omitempty"`   // the names of the Jobs that run
	LastTime   *metav1.Time       `json:"lastTime,omitempty"` // of the newest Job, as the cron expression has it
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ScheduleList is a list of Schedules.
type ScheduleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Schedule `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (s *Schedule) DeepCopyObject() runtime.Object { return s.DeepCopy() }

// DeepCopy returns a copy that shares nothing with s.
func (s *Schedule) DeepCopy() *Schedule {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	s.Spec.Template.DeepCopyInto(&c.Spec.Template)
	c.Status.Active = slices.Clone(s.Status.Active)
	c.Status.LastTime = s.Status.LastTime.DeepCopy()
	c.Status.Conditions = slices.Clone(s.Status.Conditions)
	return &c
}

// DeepCopyObject implements runtime.Object.
func (l *ScheduleList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]Schedule, len(l.Items))
	for n := range l.Items {
		c.Items[n] = *l.Items[n].DeepCopy()
	}
	return &c
}
