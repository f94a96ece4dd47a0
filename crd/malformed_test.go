package crd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientfeatures "k8s.io/client-go/features"
	featuretest "k8s.io/client-go/features/testing"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd"
)

func timedObject(name, every string) m {
	return m{"apiVersion": "crd.example.com/v1", "kind": "Website", "metadata": m{"namespace": "shop", "name": name}, "every": every}
}

// TestListBesideMalformed: List returns the objects that fit beside an error that names the others.
func TestListBesideMalformed(t *testing.T) {
	featuretest.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	many := []any{timedObject("good", "1m")}
	for i := range 1000 {
		many = append(many, timedObject(fmt.Sprintf("bad%03d", i), strings.Repeat("x", 1000)))
	}
	for name, tc := range map[string]struct {
		items []any
		found []string
		text  []string
	}{
		"one":         {items: []any{timedObject("a", "1m"), timedObject("bad", "99999999999999s"), timedObject("b", "2m")}, found: []string{"a", "b"}, text: []string{"crd: Website shop/bad of the API server"}},
		"all":         {items: []any{timedObject("bad", "x"), timedObject("worse", "y")}, text: []string{"Website shop/bad of", "Website shop/worse of"}},
		"a thousand":  {items: many, found: []string{"good"}, text: []string{"1000 malformed objects", "shop/bad000", "shop/bad009"}},
		"no name":     {items: []any{timedObject("a", "1m"), m{"every": "x"}}, text: []string{"crd: Website of the API server"}},
		"no object":   {items: []any{timedObject("bad", "x"), nil}, text: []string{"crd: Website of the API server"}},
		"no metadata": {items: []any{timedObject("bad", "x"), m{"metadata": 7}}, text: []string{"crd: Website of the API server"}},
	} {
		for media, encode := range map[string]func(any) ([]byte, error){"application/json": json.Marshal, "application/cbor": cbor.Marshal} {
			t.Run(name+" in "+media, func(t *testing.T) {
				body, err := encode(m{"apiVersion": "crd.example.com/v1", "kind": "WebsiteList", "metadata": m{"resourceVersion": "7", "continue": "next"}, "items": tc.items})
				if err != nil {
					t.Fatal(err)
				}
				c, err := crd.New[*timed](&rest.Config{Host: "http://localhost", QPS: -1, Transport: &answers{text: string(body), contentType: media}}, websiteKind, "websites")
				if err != nil {
					t.Fatal(err)
				}
				list, err := c.List(t.Context(), metav1.ListOptions{})
				if !errors.Is(err, crd.ErrMalformed) || len(err.Error()) > 8<<10 {
					t.Fatalf("error %.2100v", err)
				}
				var rejected controllerkit.RejectedError
				if !errors.As(err, &rejected) || !rejected.Rejected() || apierrors.IsNotFound(err) {
					t.Errorf("the class of %v", err)
				}
				for _, text := range tc.text {
					if !strings.Contains(err.Error(), text) {
						t.Errorf("error %v, want %s", err, text)
					}
				}
				var found []string
				if list != nil {
					for _, item := range list.Items {
						found = append(found, item.Name)
					}
					if list.ResourceVersion != "7" || list.Continue != "next" {
						t.Errorf("list %+v", list.ListMeta)
					}
				}
				if !slices.Equal(found, tc.found) {
					t.Errorf("found %q, want %q", found, tc.found)
				}
				if _, err := c.ListWatch(nil).ListWithContext(t.Context(), metav1.ListOptions{}); !errors.Is(err, crd.ErrMalformed) {
					t.Errorf("ListWatch lists without an error: %v", err)
				}
			})
		}
	}
}
