package page

import (
	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// pods is a World in which Pods run and Nodes can go down.
var pods = controllertest.Scenario{World: world.Cluster{Nodes: []string{"x", "y"}}.Run}
