package managerkit

import (
	_ "k8s.io/client-go/rest"
	_ "sigs.k8s.io/controller-runtime"
)
