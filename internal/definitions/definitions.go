// Package definitions reads CustomResourceDefinitions from files and installs them. The packages
// controllertest and controllertest/server use it.
package definitions

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/watcher"
)

const (
	maxFile       = 16 << 20 // bytes of a file
	maxFiles      = 1000     // in a folder
	establishTime = 2 * time.Minute
)

func definitionsResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// A Definition is a CustomResourceDefinition of a file.
type Definition struct {
	file string
	obj  *unstructured.Unstructured
}

// Read reads files and folders with definitions.
func Read(paths []string) ([]Definition, error) {
	var all []Definition
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		files := []string{path}
		if info.IsDir() {
			if files, err = manifests(path); err != nil {
				return nil, err
			}
		}
		before := len(all)
		for _, file := range files {
			found, err := readFile(file)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			all = append(all, found...)
		}
		if len(all) == before {
			return nil, fmt.Errorf("%s: it has no CustomResourceDefinition: name a file, or a folder with a .yaml file, that has one", path)
		}
	}
	return all, nil
}

// manifests lists the files of a folder that can have definitions.
func manifests(folder string) (files []string, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			files = append(files, filepath.Join(folder, e.Name()))
		}
	}
	if len(files) > maxFiles {
		return nil, fmt.Errorf("%s: it has %d files, and %d are allowed: name the files", folder, len(files), maxFiles)
	}
	return files, nil
}

// readFile returns the definitions among the documents of a file.
func readFile(name string) ([]Definition, error) {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is not a regular file"))
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("it has more than %d MiB: split it", maxFile>>20)
	}
	var found []Definition
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &obj.Object); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if obj.GetKind() != "CustomResourceDefinition" {
			continue
		}
		_, hasSpec := obj.Object["spec"].(map[string]any)
		switch {
		case obj.GetAPIVersion() != definitionsResource().GroupVersion().String():
			return nil, fmt.Errorf("document %d: apiVersion is %q: use %s", n, obj.GetAPIVersion(), definitionsResource().GroupVersion())
		case obj.GetName() == "":
			return nil, fmt.Errorf("document %d: metadata.name is empty: use plural.group", n)
		case !hasSpec:
			return nil, fmt.Errorf("document %d: CustomResourceDefinition %s has no spec", n, obj.GetName())
		}
		found = append(found, Definition{name, obj})
	}
}

// Install creates the definitions and waits until their kinds are served.
func Install(ctx context.Context, client dynamic.Interface, all []Definition) error {
	for _, d := range all {
		if err := d.create(ctx, client.Resource(definitionsResource())); err != nil {
			return fmt.Errorf("%s: CustomResourceDefinition %s: %w", d.file, d.obj.GetName(), err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, establishTime, fmt.Errorf("not established after %v", establishTime))
	defer cancel()
	for _, d := range all {
		if err := d.established(ctx, client); err != nil {
			return fmt.Errorf("%s: CustomResourceDefinition %s: %w", d.file, d.obj.GetName(), err)
		}
	}
	return nil
}

// create creates the definition, unless an equal one exists.
func (d Definition) create(ctx context.Context, client dynamic.ResourceInterface) error {
	_, err := client.Create(ctx, d.obj, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	live, err := client.Get(ctx, d.obj.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if live.GetDeletionTimestamp() != nil {
		return errors.New("it exists and is being deleted: wait for its end")
	}
	// The API server sets defaults, so it must say what the file would change.
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": d.obj.Object["spec"]}})
	if err != nil {
		return err
	}
	patched, err := client.Patch(ctx, d.obj.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	const cure = "delete the existing one, or use another API server"
	switch {
	case apierrors.IsInvalid(err):
		return fmt.Errorf("another definition exists, and the API server rejects the change to that of the file: %w: %s", err, cure)
	case err != nil:
		return err
	case !reflect.DeepEqual(live.Object["spec"], patched.Object["spec"]):
		return fmt.Errorf("another definition exists, whose spec differs: %s", cure)
	}
	return nil
}

// established waits until the API server serves the versions of the definition.
func (d Definition) established(ctx context.Context, client dynamic.Interface) error {
	w := &watcher.RetryWatcher[*unstructured.Unstructured]{
		Source:        watcher.Client[*unstructured.Unstructured](client.Resource(definitionsResource())),
		FieldSelector: "metadata.name=" + d.obj.GetName(),
	}
	var last *unstructured.Unstructured
	var failure error // of the watch
	for event, err := range w.Events(ctx) {
		switch {
		case err != nil:
			return errors.Join(err, failure)
		case event.Type == watch.Deleted, event.Type == watcher.Synced && last == nil:
			return errors.New("it was deleted before it was established")
		case event.Object == nil:
			failure = event.Err
			continue
		}
		last = event.Object
		if done, err := isEstablished(last); err != nil {
			return err
		} else if done {
			break
		}
	}
	group, _, _ := unstructured.NestedString(last.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(last.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(last.Object, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if name, _ := version["name"].(string); version["served"] == true {
			if err := awaitList(ctx, client.Resource(schema.GroupVersionResource{Group: group, Version: name, Resource: plural})); err != nil {
				return err
			}
		}
	}
	return nil
}

// isEstablished reports the condition Established. If the API server refuses the names, it
// returns an error.
func isEstablished(obj *unstructured.Unstructured) (bool, error) {
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	established, refused := false, ""
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		switch {
		case condition["type"] == "Established":
			established = condition["status"] == "True"
		case condition["type"] == "NamesAccepted" && condition["status"] == "False":
			refused = fmt.Sprint(condition["message"])
		}
	}
	if !established && refused != "" {
		return false, fmt.Errorf("the API server refuses its names: %s", strings.TrimSpace(refused))
	}
	return established, nil
}

// awaitList waits for the first list of a resource: the API server responds 404 for a
// moment after the definition is established.
func awaitList(ctx context.Context, client dynamic.ResourceInterface) error {
	w := &watcher.RetryWatcher[*unstructured.Unstructured]{Source: watcher.Client[*unstructured.Unstructured](client), MaxDelay: 100 * time.Millisecond}
	var failure error
	for event, err := range w.Events(ctx) {
		if err != nil {
			return errors.Join(err, failure)
		}
		if event.Type == watcher.Synced {
			break
		}
		failure = event.Err
	}
	return nil
}
