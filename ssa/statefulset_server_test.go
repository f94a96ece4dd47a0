package ssa_test

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"
	clientappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// A Memory remembers the apply of a StatefulSet with volumeClaimTemplates if its
// reads have another encoding than its writes. A template has an apiVersion and a kind in JSON, and none in protobuf.
func TestServerMemoryOfEncodings(t *testing.T) {
	config := testserver.Config(t)
	namespace := testserver.Namespace(t)
	clients := map[string]clientappsv1.StatefulSetInterface{}
	for _, encoding := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		c := rest.CopyConfig(config)
		c.ContentType, c.AcceptContentTypes = encoding, encoding
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		clients[encoding] = client.AppsV1().StatefulSets(namespace)
	}
	for writes, writer := range clients {
		for reads, reader := range clients {
			t.Run("writes "+writes+", reads "+reads, func(t *testing.T) {
				name := map[string]string{runtime.ContentTypeJSON: "j", runtime.ContentTypeProtobuf: "p"}
				config := applyappsv1.StatefulSet(name[writes]+name[reads], namespace)
				if err := json.Unmarshal([]byte(`{"spec":{
					"selector":{"matchLabels":{"app":"x"}},"serviceName":"s",
					"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"image":"i:1","name":"main"}]}},
					"volumeClaimTemplates":[{"metadata":{"name":"d"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}]}}`), config); err != nil {
					t.Fatal(err)
				}
				if _, err := ssa.Apply(t.Context(), "m", writer.Apply, config); err != nil {
					t.Fatal(err)
				}
				var memory ssa.Memory[*appsv1.StatefulSet, *applyappsv1.StatefulSetApplyConfiguration]
				call := func(want bool) {
					t.Helper()
					live, err := reader.Get(t.Context(), *config.Name, metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					_, applied, err := memory.ApplyChanged(t.Context(), "m", writer.Apply, config, live, applyappsv1.ExtractStatefulSet)
					if err != nil || applied != want {
						t.Errorf("applied = %v, %v, want %v", applied, err, want)
					}
				}
				call(true)
				call(false)
			})
		}
	}
}
