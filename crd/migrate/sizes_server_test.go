package migrate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// A page has few objects if they are large, and a hundred if they are small.
//
// Proves CK3.
func TestServerSizes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		large, small int // numbers of objects
		lists, bytes int // limits
	}{
		"large objects": {large: 40, lists: 8, bytes: 8 << 20},
		"small objects": {small: 1000, lists: 12, bytes: 8 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := install(t)
			create(k, "a", tt.large, strings.Repeat("x", 1<<20))
			create(k, "b", tt.small, "x")
			var sizes, objects []int
			client := k.process(nil, func(op *fault.Op, _ int, body []byte) {
				if op.Resource != k.name || op.Verb != "list" {
					return
				}
				var list struct {
					Items []struct{} `json:"items"`
				}
				if err := json.Unmarshal(body, &list); err != nil {
					t.Error(err)
				}
				objects, sizes = append(objects, len(list.Items)), append(sizes, len(body))
			})
			report, err := k.migrator(client).Once(t.Context()) // which reads all objects, and changes none
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("objects of the pages %d, bytes %d", objects, sizes)
			if report.Objects != tt.large+tt.small {
				t.Errorf("%d objects were read", report.Objects)
			}
			if len(objects) > tt.lists {
				t.Errorf("%d lists, want %d at most", len(objects), tt.lists)
			}
			for _, size := range sizes {
				if size > tt.bytes {
					t.Errorf("a page has %d bytes, want %d at most", size, tt.bytes)
				}
			}
		})
	}
}

// create creates n objects in v1alpha1.
func create(k *kind, prefix string, n int, value string) {
	k.t.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(n, 8) {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				obj := k.object("v1alpha1", fmt.Sprintf("%s-%04d", prefix, i), m{"spec": m{"a": value}})
				if _, err := k.at("v1alpha1").Create(k.t.Context(), obj, metav1.CreateOptions{FieldManager: "one"}); err != nil {
					k.t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
