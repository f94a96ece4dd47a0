package operator_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

// TestServerMetrics: an operator counts the changes of its caches by the program, logs one an hour
// for each informer, and counts the objects that its controllers reconcile.
func TestServerMetrics(t *testing.T) {
	t.Parallel()
	eachCache(t, testServerMetrics)
}

func testServerMetrics(t *testing.T, cached caches) {
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	p := newPairsWith(t, config, namespace, operator.Options{Name: "measured"}, cached)
	logs := testlog.New()
	start(t, p.op, logs)
	create(t, config, namespace, "make-one")
	receive(t, p.created)
	body := newResponse(t, p.op.Metrics.Handler(), "/metrics")
	for _, want := range []string{`controller_objects{controller="pairs"} 1`, `controller_informer_mutations_total{name="configmaps"} 0`} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	for _, m := range []informer.Mutation{
		{Name: "configmaps", Key: "a/b", Path: ".data[\"x\ny\"]"},
		{Name: "configmaps", Key: "a/c", Path: ".data"},
		{Name: "secrets", Key: "a/b"},
	} {
		p.op.Informers.Mutated(m)
	}
	var got [][]any
	for _, line := range logs.Find("The program changed an object in a cache") {
		got = append(got, []any{line.Values["informer"], line.Values["object"], line.Values["path"]})
	}
	if diff := cmp.Diff([][]any{{"configmaps", "a/b", `.data["x\ny"]`}, {"secrets", "a/b", ""}}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}
