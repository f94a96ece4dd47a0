package kube_test

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/controllerkit/controllerkit/internal/kube"
)

func TestAsUnknownField(t *testing.T) {
	invalid := func(text string) error {
		return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), `{"a":"strict decoding error: unknown field \"x\""}`, text)})
	}
	for _, tt := range []struct {
		name string
		err  error
		want string // of the fields; "" for err itself
	}{
		{"nil", nil, ""},
		{"of a patch", invalid(`strict decoding error: unknown field "status.url"`), `unknown field "status.url"`},
		{"of a body", apierrors.NewBadRequest(`Box in version "v1" cannot be handled as a Box: strict decoding error: unknown field "status.url"`), `unknown field "status.url"`},
		{"a duplicate", invalid(`strict decoding error: duplicate field "status.url"`), ""},
		{"another class", errors.New(`strict decoding error: unknown field "status.url"`), ""},
		{"another text", apierrors.NewBadRequest("no"), ""},
	} {
		got := kube.AsUnknownField(tt.err)
		_, ok := errors.AsType[*kube.UnknownFieldError](got)
		if ok != (tt.want != "") || !ok && got != tt.err || ok && (!errors.Is(got, tt.err) || !strings.HasSuffix(got.Error(), ": "+tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, got, tt.want)
		}
	}
}
