package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/migrate"
)

// A Job migrates the objects once. In a cluster, omit Settle.
func ExampleMigrator_Once() {
	client := newFake("blog", "news") // of a cluster: dynamic.NewForConfig
	m := &migrate.Migrator{Client: client, Definition: "websites.example.com", Settle: time.Millisecond}
	report, err := m.Once(context.Background())
	var blocked *migrate.BlockedError
	if errors.As(err, &blocked) {
		fmt.Println(blocked.Objects, "objects are left")
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Version, report.Objects, report.Writers)
	// Output: v1 2 map[v1alpha1:[one]]
}

// An operator does not start on a definition that lacks its version.
func ExampleRequire() {
	client := newFake()
	err := migrate.Require(context.Background(), client, schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "websites"})
	if errors.Is(err, crd.ErrNotServed) {
		fmt.Println(err)
	}
	// Output: migrate: CustomResourceDefinition websites.example.com does not serve the version "v2", but ["v1alpha1" "gate" "v1"]: install the definition of this release
}

// The definition of a Helm chart is not written.
func ExampleInstall() {
	const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: websites.example.com}
spec:
  group: example.com
  names: {plural: websites, singular: website, kind: Website, listKind: WebsiteList}
  scope: Namespaced
  versions:
  - name: v2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
`
	client := newFake()
	client.PrependReactor("get", "customresourcedefinitions", helm(client))
	err := migrate.Install(context.Background(), client, "website-operator.example.com", []byte(definition))
	fmt.Println(err)
	// Output: migrate: CustomResourceDefinition websites.example.com does not serve the version "v2", but ["v1alpha1" "gate" "v1"]: install the definition of this release: Helm manages it: upgrade it there
}
