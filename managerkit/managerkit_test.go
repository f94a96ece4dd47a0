package managerkit_test

import (
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/controllerkit/controllerkit/internal/testserver"
	eventrecorder "github.com/controllerkit/controllerkit/recorder"
)

// The client-go of the root module has no such interface.
var _ events.AnnotatedEventRecorder = (*eventrecorder.Objects)(nil)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testserver.Main(m)
}
