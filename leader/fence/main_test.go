package fence_test

import (
	"log/slog"
	"testing"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	testserver.Main(m)
}
