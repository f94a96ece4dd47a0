package testserver

import (
	"strconv"
	"testing"

	"k8s.io/client-go/rest"
)

// A Cluster is a controlplane of several etcds and kube-apiservers.
type Cluster struct{ *Server }

// StartCluster starts a cluster that is stopped when the test ends. Its Config leads to a
// load balancer before the kube-apiservers.
func StartCluster(t testing.TB, etcds, servers int) *Cluster {
	t.Helper()
	return &Cluster{Own(t, "-etcds", strconv.Itoa(etcds), "-servers", strconv.Itoa(servers), "-commands")}
}

// ServerConfig returns an administrator's configuration for one kube-apiserver.
func (c *Cluster) ServerConfig(t testing.TB, n int) *rest.Config {
	t.Helper()
	config, err := c.ConfigOf("server-" + strconv.Itoa(n))
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	return config
}

// Run sends commands such as "pause etcd-0", one after the other. It is for one goroutine.
func (c *Cluster) Run(t testing.TB, commands ...string) {
	t.Helper()
	for _, command := range commands {
		if err := c.Do(command); err != nil {
			t.Fatalf("testserver: %v", err)
		}
	}
}
