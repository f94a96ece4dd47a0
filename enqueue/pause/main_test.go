package pause_test

import (
	"testing"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }
