package controller_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
)

var previewed = flag.Int("previewed", 5, "`number` of backups of TestServerPreview")

// TestServerPreview asks the operator what it would do an hour after its last Job: it would start the next one, record a snapshot
// and delete an old one. It does nothing of that.
func TestServerPreview(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	namespace := w.namespaces[0]
	w.set(map[string]string{"namespaces": namespace})
	stop := w.start(w.admin)
	for n := range *previewed {
		w.awaitReady(w.create(namespace, fmt.Sprint("backup-", n), 1), "Scheduled")
	}
	b := w.create(namespace, "first", 1)
	w.awaitJobs(b, 0)
	w.finish(b, 0, "")
	w.awaitReady(b, "JobComplete", 0)
	w.pass(b, time.Hour)
	w.awaitJobs(b, 0, 1)
	stop()
	w.finish(b, 1, "")
	w.clock.advance(time.Hour)

	before, snapshots := testserver.Stored(t, w.admin, namespace), w.service.Snapshots(string(b.UID))
	p := &preview.Preview{}
	if err := w.operator(w.admin, operator.Options{Preview: p}).Run(w.logs.Context(t.Context())); err != nil {
		t.Fatal(err)
	}
	report := p.Report()
	var got []string
	for _, call := range report.Calls {
		for _, c := range call.Changes {
			if call.Key == namespace+"/first" {
				got = append(got, fmt.Sprint(c.Action, " ", c.Resource, " ", c.Subresource, " ", c.Name))
			}
		}
		got = append(got, call.Skipped...)
		if call.Error != "" {
			t.Errorf("%s: %s", call.Key, call.Error)
		}
	}
	want := []string{
		"create jobs.batch  " + hour(b, 2), "change jobs.batch  " + hour(b, 1), "delete jobs.batch  " + hour(b, 0),
		"change backups.backup.example.com status first",
		"create backup.example.com/snapshot",
	}
	if diff := cmp.Diff(want, got); diff != "" || report.Keys != *previewed+2 {
		t.Errorf("%d keys, (-want +got)\n%s", report.Keys, diff)
	}
	if diff := cmp.Diff(before, testserver.Stored(t, w.admin, namespace)); diff != "" {
		t.Errorf("the preview has changed objects: (-before +after)\n%s", diff)
	}
	if diff := cmp.Diff(snapshots, w.service.Snapshots(string(b.UID))); diff != "" {
		t.Errorf("the preview has changed snapshots: (-before +after)\n%s", diff)
	}
}
