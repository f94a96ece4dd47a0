package main_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// TestServerMinimal runs the program: it makes a copy, follows the source, repairs the
// copy, deletes it with the label, and stops with exit code 0, without an error in its log.
func TestServerMinimal(t *testing.T) {
	cfg := testserver.Config(t)
	kube := kubernetes.NewForConfigOrDie(cfg)
	ns := testserver.Namespace(t)
	bin := filepath.Join(t.TempDir(), "minimal")
	if err := testprocess.Build(t.Context(), bin, "."); err != nil {
		t.Fatal(err)
	}
	admin := clientcmdapi.NewConfig()
	admin.Clusters["x"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData, CertificateAuthority: cfg.CAFile}
	admin.AuthInfos["x"] = &clientcmdapi.AuthInfo{
		Token: cfg.BearerToken, ClientCertificate: cfg.CertFile, ClientCertificateData: cfg.CertData, ClientKey: cfg.KeyFile, ClientKeyData: cfg.KeyData,
	}
	admin.Contexts["x"] = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}
	admin.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*admin, file); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", file)
	p, err := lab.StartProcess(bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)

	source, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "minimal-"}, Data: map[string]string{"ca": "1"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kube.CoreV1().ConfigMaps("default").Delete(context.WithoutCancel(t.Context()), source.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	// has waits until the copy has the data. "" means no copy.
	has := func(want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		copies, one := kube.CoreV1().ConfigMaps(ns), metav1.ListOptions{FieldSelector: "metadata.name=" + source.Name}
		all, err := copies.List(ctx, one)
		if err != nil {
			t.Fatal(err)
		}
		last := ""
		if len(all.Items) > 0 {
			last = all.Items[0].Data["ca"]
		}
		if last == want {
			return
		}
		one.ResourceVersion = all.ResourceVersion
		w, err := copies.Watch(ctx, one)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		for event := range w.ResultChan() {
			if m, ok := event.Object.(*corev1.ConfigMap); ok {
				last = m.Data["ca"]
				if event.Type == watch.Deleted {
					last = ""
				}
				if last == want {
					return
				}
			}
		}
		t.Fatalf("the copy has %q, want %q\n%s", last, want, p.Tail(20))
	}
	patch := func(namespace, data string) {
		t.Helper()
		if _, err := kube.CoreV1().ConfigMaps(namespace).Patch(t.Context(), source.Name, types.MergePatchType, []byte(data), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label := fmt.Sprintf(`{"metadata":{"labels":{"copy-from":%q}}}`, source.Name)
	if _, err := kube.CoreV1().Namespaces().Patch(t.Context(), ns, types.MergePatchType, []byte(label), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	has("1")
	patch("default", `{"data":{"ca":"2"}}`)
	has("2")
	patch(ns, `{"data":{"ca":"else"}}`)
	has("2")
	label = `{"metadata":{"labels":{"copy-from":null}}}`
	if _, err := kube.CoreV1().Namespaces().Patch(t.Context(), ns, types.MergePatchType, []byte(label), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	has("")
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(p.Output()) {
		if line[0] == 'E' || strings.Contains(line, "not declared") {
			t.Errorf("a line of the log: %s", line)
		}
	}
}
