package filter_test

import (
	"testing"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) {
	testlog.Install(testlog.Silent()) // groups in bubbles write a lot
	testserver.Main(m)
}
