package migrate_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// Two kube-apiservers disagree: one does not see that the storage version has changed, and still stores objects in the
// former one. A migrator whose Settle is longer than that migrates them too. Without it they stay, and
// status.storedVersions is wrong, which is the caveat of the package.
//
// Proves VM1, VM3.
func TestServerLate(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it needs API servers of its own, which -short leaves out")
	}
	const settle = 10 * time.Second
	cluster := testserver.StartCluster(t, 1, 2)
	late := dynamic.NewForConfigOrDie(cluster.ServerConfig(t, 1))
	kinds := []*crowd{
		newCrowd(installAt(t, cluster.ServerConfig(t, 0), "default"), 10),
		newCrowd(installAt(t, cluster.ServerConfig(t, 0), "kube-public"), 10),
	}
	patient, hasty := kinds[0], kinds[1]
	atLate := func(c *crowd, version string) dynamic.ResourceInterface {
		return late.Resource(c.resource.WithVersion(version)).Namespace(c.namespace)
	}
	for _, c := range kinds {
		for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // no event shows that a server serves a definition
			_, err := atLate(c, "v1alpha1").Get(t.Context(), c.names[0], metav1.GetOptions{})
			if err == nil {
				break
			}
			if time.Now().After(limit) {
				t.Fatalf("the second server does not serve the definition: %v", err)
			}
		}
	}
	cluster.Run(t, "delay server-1 customresourcedefinitions")
	for _, c := range kinds {
		c.store("v1", true)
	}
	hasty.once()

	apply := func(c *crowd, version, name string) {
		if _, err := atLate(c, version).Apply(t.Context(), name, c.object(version, name, m{"spec": m{"a": "late"}}), metav1.ApplyOptions{FieldManager: "one"}); err != nil {
			t.Errorf("apply %s by the late server: %v", name, err)
		}
	}
	for _, c := range kinds {
		for _, version := range []string{"v1alpha1", "v1"} { // in either version the server stores v1alpha1
			name := "late-" + version
			apply(c, version, c.names[0])
			apply(c, version, name)
			for _, x := range c.names {
				obj, err := atLate(c, version).Get(t.Context(), x, metav1.GetOptions{})
				if err != nil {
					t.Errorf("read %s in %s by the late server: %v", x, version, err)
					continue
				}
				c.check(obj, false)
			}
		}
		c.names = append(c.names, "late-v1alpha1", "late-v1")
	}
	settling, ended := make(chan time.Time, 1), make(chan error, 1)
	migrator := patient.migrator(patient.process(nil, func(op *fault.Op, status int, _ []byte) {
		if status == http.StatusOK && op.Subresource == "status" && strings.Contains(string(op.Body), "Settling") {
			settling <- time.Now()
		}
	}))
	migrator.Settle = settle
	go func() {
		_, err := migrator.Once(t.Context())
		ended <- err
	}()
	var began time.Time
	select {
	case began = <-settling:
	case err := <-ended:
		t.Fatalf("the migration ended before it settled: %v", err)
	}
	apply(patient, "v1", patient.names[1])
	cluster.Run(t, "join server-1")
	if took := time.Since(began); took > settle {
		t.Fatalf("the server was late for %v, which is more than Settle", took)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, c := range kinds {
		equal(t, "storedVersions", []string{"v1"}, c.stored())
		for _, version := range []string{"v1alpha1", "v1"} {
			if got := len(c.read(version, "late-v1").Object["spec"].(m)); got != 1 {
				t.Errorf("late-v1 has %d fields in %s", got, version)
			}
		}
	}
	patient.checkStored("v1")
	equal(t, "objects that a migrator without Settle leaves", []string{"x-0000", "late-v1alpha1", "late-v1"}, hasty.unstored("v1"))
}
