package zoo_test

import (
	"os"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/internal/zoo"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

func TestReference(t *testing.T) {
	o := controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, Parallel: 128}
	if s := os.Getenv("EXPLORE_BUDGET"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		o.Budget = d
	}
	controllertest.Explore(t, zoo.Reference(), o)
}
