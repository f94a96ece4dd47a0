package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of Backup.
var GroupVersion = schema.GroupVersion{Group: "backup.example.com", Version: "v1"}

// Resource returns the group-qualified name of a resource, such as "backups".
func Resource(resource string) schema.GroupResource {
	return GroupVersion.WithResource(resource).GroupResource()
}

// Backup copies a claim at regular times, each time by a Job, and keeps the newest snapshots.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=backups,singular=backup
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.spec.claim`
// +kubebuilder:printcolumn:name="Last",type=date,JSONPath=`.status.lastTime`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="the names of the Jobs begin with the name of the backup: at most 52 characters, beginning with a letter, no dots"
type Backup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec BackupSpec `json:"spec"`
	// +optional
	Status BackupStatus `json:"status,omitzero"`
}

// BackupSpec is the desired state of a backup.
type BackupSpec struct {
	// Interval is the time between two Jobs, such as 6h. The Jobs of 6h are due at 00:00, 06:00,
	// 12:00 and 18:00 UTC.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]{1,6}(h|m|s))+$`
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="the interval is at least 1m"
	// +required
	Interval metav1.Duration `json:"interval"`

	// Retention is the number of snapshots to keep. If it is absent, the settings of the operator
	// decide.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	Retention int32 `json:"retention,omitempty"`

	// Claim is the PersistentVolumeClaim that each Job mounts at /source.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Claim string `json:"claim"`

	// Image is the container image that copies /source.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +required
	Image string `json:"image"`
}

// BackupStatus is the state that the operator observed last.
type BackupStatus struct {
	// ObservedGeneration is the generation of the spec that the status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// LastTime is the time at which the newest Job was due.
	//
	// +optional
	LastTime *metav1.Time `json:"lastTime,omitempty"`

	// NextTime is the time at which the next Job is due.
	//
	// +optional
	NextTime *metav1.Time `json:"nextTime,omitempty"`

	// Snapshots are the stored snapshots, the newest first.
	//
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=100
	// +optional
	Snapshots []Snapshot `json:"snapshots,omitempty"`

	// Conditions has Ready.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Snapshot is the result of a Job.
type Snapshot struct {
	// ID is the name that the store gave to the snapshot.
	//
	// +kubebuilder:validation:MaxLength=253
	// +required
	ID string `json:"id"`

	// Time is the time at which the Job was due.
	//
	// +required
	Time metav1.Time `json:"time"`
}

// BackupList is a list of backups.
//
// +kubebuilder:object:root=true
type BackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Backup `json:"items"`
}
