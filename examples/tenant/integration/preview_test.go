package integration_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/preview"
)

var previewed = flag.Int("previewed", 10, "`number` of tenants of TestServerPreview")

// TestServerPreview asks the program what it would change: first nothing, and then, after the users have changed
// a tenant and deleted one, exactly that. It changes nothing itself, and opens and closes no account.
func TestServerPreview(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run()
	for n := range *previewed {
		made := w.create(tenant(fmt.Sprint("tenant-", n)))
		w.await(func() error { return w.stored(made) })
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	run := func(wantCode int) *preview.Report {
		t.Helper()
		before := testserver.Stored(t, w.admin, "")
		w.await(func() error { // what the control plane still does after the last write
			now := testserver.Stored(t, w.admin, "")
			same := cmp.Equal(before, now)
			if before = now; !same {
				return errors.New("the cluster is not at rest")
			}
			return nil
		})
		accounts := w.billing.Accounts()
		cmd := exec.CommandContext(t.Context(), tenantProgram(t), append(slices.Clone(r.args), "-preview=json")...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != wantCode {
			t.Errorf("the exit code is %d, %v, want %d\n%s", code, err, wantCode, stderr.String())
		}
		var report preview.Report
		if err := json.Unmarshal(out, &report); err != nil {
			t.Fatalf("the report is not JSON: %v\n%s\n%s", err, out, stderr.String())
		}
		if diff := cmp.Diff(before, testserver.Stored(t, w.admin, "")); diff != "" {
			t.Errorf("the preview has changed the cluster: (-before +after)\n%s", diff)
		}
		if diff := cmp.Diff(accounts, w.billing.Accounts()); diff != "" {
			t.Errorf("the preview has changed accounts: (-before +after)\n%s", diff)
		}
		return &report
	}
	if diff := cmp.Diff(&preview.Report{Keys: *previewed}, run(0)); diff != "" {
		t.Errorf("the preview of no change: (-want +got)\n%s", diff)
	}

	tenants := w.Tenants.TenancyV1alpha1().Tenants()
	if _, err := tenants.Patch(t.Context(), "tenant-1", types.MergePatchType, []byte(`{"spec":{"quota":{"pods":"20"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := tenants.Delete(t.Context(), "tenant-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	const resource = "tenants.tenancy.example.com"
	want := &preview.Report{Keys: *previewed, Calls: []preview.Call{
		{Controller: "tenant-controller", Key: "tenant-1", Changes: []preview.Change{
			{Action: preview.Modify, Resource: "resourcequotas", Namespace: "tenant-1", Name: "tenant", Fields: []preview.Field{{Path: ".spec.hard.pods", Old: `"10"`, New: `"20"`}}},
			{Action: preview.Modify, Resource: resource, Subresource: "status", Name: "tenant-1", Fields: []preview.Field{
				{Path: ".status.conditions[type=NamespaceReady].observedGeneration", Old: "1", New: "2"},
				{Path: ".status.conditions[type=AccountOpen].observedGeneration", Old: "1", New: "2"},
				{Path: ".status.conditions[type=Ready].observedGeneration", Old: "1", New: "2"},
				{Path: ".status.observedGeneration", Old: "1", New: "2"},
			}},
		}},
		{Controller: "tenant-controller", Key: "tenant-2", Skipped: []string{"run the cleanup of the finalizer tenancy.example.com/account, and remove it"}},
	}}
	if diff := cmp.Diff(want, run(2)); diff != "" {
		t.Errorf("the preview of two changes: (-want +got)\n%s", diff)
	}
}
