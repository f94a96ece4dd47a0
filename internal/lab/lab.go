// Package lab contains the helpers of the examples' demo and integration tests, and of the game days. It
// installs an example in a cluster, runs its controller as a separate process with the
// rights in its config/rbac.yaml, and records the requests of the process.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/watcher"
)

// Install applies the manifests in the given order. It waits until the API server
// serves each of their custom resources.
func Install(ctx context.Context, cfg *rest.Config, manifests fs.FS, names ...string) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kube.Discovery()))
	for _, name := range names {
		data, err := fs.ReadFile(manifests, name)
		if err != nil {
			return err
		}
		for document := range strings.SplitSeq(string(data), "\n---\n") {
			obj := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &obj.Object); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if len(obj.Object) == 0 {
				continue // only comments
			}
			mapping, err := mapper.RESTMapping(obj.GroupVersionKind().GroupKind(), obj.GroupVersionKind().Version)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
			if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
				resource = client.Resource(mapping.Resource).Namespace(obj.GetNamespace())
			}
			if _, err := resource.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "lab", Force: true}); err != nil {
				return fmt.Errorf("%s: apply %s %s: %w", name, obj.GetKind(), obj.GetName(), err)
			}
			if obj.GetKind() == "CustomResourceDefinition" {
				if err := established(ctx, resource, obj.GetName()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// established waits until the API server serves a CustomResourceDefinition. It survives the
// end of a watch.
func established(ctx context.Context, client dynamic.ResourceInterface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	w := &watcher.RetryWatcher[*unstructured.Unstructured]{
		Source:        watcher.Client[*unstructured.Unstructured](client),
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	}
	last := errors.New("the API server has not set its condition Established")
	for event, err := range w.Events(ctx) {
		switch {
		case err != nil:
			return fmt.Errorf("lab: CustomResourceDefinition %s: %w: %w", name, err, last)
		case event.Type == watcher.Retrying:
			last = event.Err
		case event.Type == watch.Deleted:
			return fmt.Errorf("lab: CustomResourceDefinition %s was deleted before it was established: use an API server that no other program changes", name)
		case event.Object != nil:
			conditions, _, _ := unstructured.NestedSlice(event.Object.Object, "status", "conditions")
			for _, c := range conditions {
				if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
					return nil
				}
			}
		}
	}
	return last // not reached: the last element has an error
}

// LimitedKubeconfig writes a kubeconfig for a service account, such as the one in an
// example's config/rbac.yaml, so that its user has only the rights in that file. If proxy
// is not nil, the kubeconfig contains the proxy's address instead of the API server's.
func LimitedKubeconfig(ctx context.Context, cfg *rest.Config, namespace, account, dir string, proxy *Server) (string, error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return "", err
	}
	token, err := kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](7 * 24 * 3600)}, // longer than any run
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of service account %s/%s: %w", namespace, account, err)
	}
	cluster := &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData, CertificateAuthority: cfg.CAFile}
	if proxy != nil {
		cluster = &clientcmdapi.Cluster{Server: proxy.URL, CertificateAuthorityData: proxy.CA}
	}
	out := clientcmdapi.NewConfig()
	out.Clusters["lab"] = cluster
	out.AuthInfos["lab"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	out.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "lab"}
	out.CurrentContext = "lab"
	data, err := clientcmd.Write(*out)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, "kubeconfig-*") // mode 0600
	if err != nil {
		return "", err
	}
	if _, err := f.Write(data); err != nil {
		f.Close()
		return "", err
	}
	return filepath.Clean(f.Name()), f.Close()
}
