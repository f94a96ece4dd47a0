package controller_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/controllerkit/controllerkit/examples/tenant/controller"
)

func TestSubjectOf(t *testing.T) {
	tests := []struct {
		member  string
		want    rbacv1.Subject
		wantErr string // a part of the error; "" means none
	}{
		{member: "alice", want: rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}},
		{member: "alice@example.com", want: rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice@example.com"}},
		{member: "oidc:alice", want: rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "oidc:alice"}},
		{member: "groups", want: rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "groups"}},
		{member: "group:devs", want: rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "devs"}},
		{member: "group:oidc:devs", want: rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "oidc:devs"}},
		{member: "system:serviceaccount:ci:deployer", want: rbacv1.Subject{Kind: "ServiceAccount", Namespace: "ci", Name: "deployer"}},
		{member: "system:serviceaccount:ci:a.b", want: rbacv1.Subject{Kind: "ServiceAccount", Namespace: "ci", Name: "a.b"}},

		{member: "", wantErr: "has no name"},
		{member: "group:", wantErr: "has no name"},
		{member: "group: ", wantErr: "has no name"},
		{member: "system:admin", wantErr: "reserved by Kubernetes"},
		{member: "system:serviceaccount", wantErr: "reserved by Kubernetes"},
		{member: "system:serviceaccounts:ci", wantErr: "reserved by Kubernetes"},
		{member: "group:system:authenticated", wantErr: "reserved by Kubernetes"},
		{member: "group:system:masters", wantErr: "reserved by Kubernetes"},
		{member: "system:serviceaccount:", wantErr: "not a valid service account"},
		{member: "system:serviceaccount:ci", wantErr: "not a valid service account"},
		{member: "system:serviceaccount:ci:", wantErr: "not a valid service account"},
		{member: "system:serviceaccount::deployer", wantErr: "not a valid service account"},
		{member: "system:serviceaccount:ci:a:b", wantErr: "not a valid service account"},
		{member: "system:serviceaccount:CI:deployer", wantErr: "not a valid service account"},
		{member: "system:serviceaccount:a.b:deployer", wantErr: "not a valid service account"},
	}
	for _, tt := range tests {
		t.Run(tt.member, func(t *testing.T) {
			got, err := controller.SubjectOf(tt.member)
			switch {
			case tt.wantErr == "" && err != nil:
				t.Fatalf("got error %v, want none", err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Fatalf("got error %v, want one with %q", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
