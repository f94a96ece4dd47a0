package kubectltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fluxcd/pkg/ssa"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/cmd/apply"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Kubectl runs kubectl apply --prune --applyset in this process, with the parent as
// RESOURCE/NAME, and returns its error. If a namespace is given, which a parent in one
// needs, kubectl rejects objects of other namespaces. Calls must not overlap.
func Kubectl(ctx context.Context, config *rest.Config, namespace, parent string, objects ...*unstructured.Unstructured) (err error) {
	dir, err := os.MkdirTemp("", "kubectl-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var file bytes.Buffer
	for _, o := range objects {
		data, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		file.WriteString("---\n")
		file.Write(data)
	}
	path := filepath.Join(dir, "objects.yaml")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		return err
	}
	if err := os.Setenv(string(cmdutil.ApplySet), "true"); err != nil {
		return err
	}
	flags := genericclioptions.NewConfigFlags(false).WithWrapConfigFn(func(*rest.Config) *rest.Config { return rest.CopyConfig(config) })
	flags.APIServer = &config.Host
	if namespace != "" {
		flags.Namespace = &namespace
	}
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	cmd := apply.NewCmdApply("kubectl", cmdutil.NewFactory(flags), streams)
	root := &cobra.Command{Use: "kubectl"}
	root.AddCommand(cmd)
	root.SetOut(out)
	root.SetErr(errOut)
	root.SetArgs([]string{"apply", "--server-side", "--force-conflicts", "--prune", "--applyset=" + parent, "--filename=" + path})
	// kubectl ends the process after an error.
	type fatal string
	cmdutil.BehaviorOnFatal(func(text string, _ int) { panic(fatal(text)) })
	defer cmdutil.DefaultBehaviorOnFatal()
	defer func() {
		if r := recover(); r != nil {
			text, ok := r.(fatal)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%s", text)
		}
	}()
	return root.ExecuteContext(ctx)
}

// Flux returns a function that applies objects with Flux's manager and its defaults. It
// deletes the objects that only the call before had, as Flux's inventory does.
func Flux(config *rest.Config) (func(ctx context.Context, objects ...*unstructured.Unstructured) error, error) {
	c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, err
	}
	manager := ssa.NewResourceManager(c, nil, ssa.Owner{Field: "flux", Group: "flux.example.com"})
	manager.SetConcurrency(8) // as many as a Set
	var before []*unstructured.Unstructured
	return func(ctx context.Context, objects ...*unstructured.Unstructured) error {
		wanted := map[string]bool{}
		for _, o := range objects {
			wanted[o.GetName()] = true
		}
		var stale []*unstructured.Unstructured
		for _, o := range before {
			if !wanted[o.GetName()] {
				stale = append(stale, o)
			}
		}
		before = nil
		for _, o := range objects { // the manager changes its arguments
			before = append(before, o.DeepCopy())
		}
		if _, err := manager.ApplyAllStaged(ctx, objects, ssa.DefaultApplyOptions()); err != nil {
			return err
		}
		_, err := manager.DeleteAll(ctx, stale, ssa.DefaultDeleteOptions())
		return err
	}, nil
}
