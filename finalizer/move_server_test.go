package finalizer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/finalizer"
)

const (
	oldName = "bucket.example.com"
	newName = "example.com/bucket"
)

// ensure is the function of docs/finalizers.md. TestMovePage compares them.
func ensure[T metav1.Object](ctx context.Context, client controllerkit.Patcher[T], obj T, cleanup func(context.Context, finalizer.Held[T]) error) (held finalizer.Held[T], live bool, err error) {
	name := newName
	if obj.GetDeletionTimestamp() != nil && !finalizer.Has(obj, newName) {
		name = oldName // the API server adds no finalizer to a deleted object
	}
	held, live, err = finalizer.Ensure(ctx, client, obj, name, cleanup)
	if err == nil && live {
		_, err = finalizer.Remove(ctx, client, held.Object(), oldName)
	}
	return held, live && err == nil, err
}

func TestMovePage(t *testing.T) {
	page, err := os.ReadFile("../docs/finalizers.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("move_server_test.go")
	if err != nil {
		t.Fatal(err)
	}
	cut := func(text []byte) string {
		_, function, _ := strings.Cut(string(text), "\nfunc ensure[")
		function, _, _ = strings.Cut(function, "\n}\n")
		return function
	}
	if shown := cut(page); shown == "" || shown != cut(source) {
		t.Errorf("the page shows\n%s\nwant\n%s", shown, cut(source))
	}
}

// failing fails one request after the API server has performed it.
type failing struct {
	dynamic.ResourceInterface
	at int
}

func (f *failing) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error) {
	stored, err := f.ResourceInterface.Patch(ctx, name, pt, data, opts, subresources...)
	if f.at--; f.at == 0 {
		return nil, errBoom
	}
	return stored, err
}

// The function of docs/finalizers.md moves objects of each state to the new name. It runs
// the cleanup of each deleted one, whatever response is lost.
//
// Proves F5.
func TestServerMove(t *testing.T) {
	const group = "move.test.controllerkit.dev"
	client := kinds(t, group)["Widget"]
	for i, tt := range []struct {
		finalizers []string
		deleted    bool
	}{
		{nil, false},
		{[]string{oldName}, false},
		{[]string{oldName, newName}, false},
		{[]string{newName}, false},
		{[]string{"example.com/other", oldName}, false},
		{[]string{oldName}, true},
		{[]string{oldName, newName}, true},
		{[]string{newName}, true},
		{[]string{"example.com/other", oldName}, true},
		{[]string{"example.com/other"}, true},
	} {
		for fail := range 3 {
			t.Run(fmt.Sprintf("%s,deleted=%t,fail=%d", strings.Join(tt.finalizers, "+"), tt.deleted, fail), func(t *testing.T) {
				object := fmt.Sprintf("w%d-%d", i, fail)
				_, err := client.Create(t.Context(), newObject(group, "Widget", object, tt.finalizers...), metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if tt.deleted {
					if err := client.Delete(t.Context(), object, metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				f := &failing{client, fail}
				cleanups, steps := 0, 0
				for ; ; steps++ {
					obj, err := client.Get(t.Context(), object, metav1.GetOptions{})
					if apierrors.IsNotFound(err) {
						break
					}
					if err != nil || steps == 8 {
						t.Fatalf("after %d calls: %v, finalizers %q", steps, err, obj.GetFinalizers())
					}
					_, live, err := ensure(t.Context(), f, obj, func(context.Context, finalizer.Held[*unstructured.Unstructured]) error {
						cleanups++
						return nil
					})
					if err != nil && !errors.Is(err, errBoom) {
						t.Fatal(err)
					}
					now, getErr := client.Get(t.Context(), object, metav1.GetOptions{})
					if !tt.deleted && (getErr != nil || err == nil && !finalizer.Has(now, newName)) {
						t.Fatalf("live without the new name: %v, %v", now, getErr)
					}
					if live || err == nil && getErr == nil && !finalizer.Has(now, oldName) && !finalizer.Has(now, newName) {
						break
					}
				}
				ours := slices.Contains(tt.finalizers, oldName) || slices.Contains(tt.finalizers, newName)
				if (cleanups > 0) != (tt.deleted && ours) {
					t.Errorf("%d cleanups", cleanups)
				}
				now, err := client.Get(t.Context(), object, metav1.GetOptions{})
				switch other := slices.Contains(tt.finalizers, "example.com/other"); {
				case tt.deleted && !other:
					if !apierrors.IsNotFound(err) {
						t.Errorf("the deleted object: %v, want NotFound", err)
					}
				case err != nil:
					t.Fatal(err)
				case finalizer.Has(now, oldName) || finalizer.Has(now, newName) == tt.deleted || finalizer.Has(now, "example.com/other") != other:
					t.Errorf("finalizers %q", now.GetFinalizers())
				}
			})
		}
	}
}
