//go:build requirements

package suites_test

// go mod tidy keeps what the operators and their suites import. They compile only with the overlay.
import (
	_ "github.com/rabbitmq/messaging-topology-operator/controllers"
	_ "sigs.k8s.io/jobset/pkg/controllers"
	_ "sigs.k8s.io/jobset/pkg/webhooks"

	_ "github.com/controllerkit/controllerkit/managerkit"
)
