package main

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcdEndpoint returns etcd's address: a socket in the data folder. The mode of that
// folder is etcd's access control.
func etcdEndpoint(dir string) string {
	return "unix://" + filepath.Join(dir, "etcd.sock")
}

// clientSocket returns the socket on which an etcd of a cluster serves.
func clientSocket(dir, name string) string { return filepath.Join(dir, name+".sock") }

// peerURL returns the address of an etcd for its peers: a socket in the working directory,
// with the form of a host and a port, which etcd's client of peers requires.
func peerURL(name string) string { return "unix://" + name + ":1" }

// etcdTimeout bounds the start of etcd.
var etcdTimeout = time.Minute

// awaitEtcd starts etcd with its sockets in dir. Its error is errStop if a signal or the end of
// standard input comes first. etcd waits for the lock of its data without a limit, so its start
// may outlive awaitEtcd. It ends with the process.
func (o *options) awaitEtcd(dir string, signals chan os.Signal, stop <-chan struct{}) (*embed.Etcd, error) {
	type start struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan start, 1)
	go func() {
		etcd, err := startEtcd(dir, cmp.Or(o.data, filepath.Join(dir, "etcd")), o.verbosity)
		started <- start{etcd, err}
	}()
	select {
	case s := <-started:
		return s.etcd, s.err
	case <-time.After(etcdTimeout):
		if o.data == "" {
			return nil, fmt.Errorf("etcd did not start in %v", etcdTimeout)
		}
		return nil, fmt.Errorf("etcd did not start in %v: another process may use -data %s: stop it, or use another folder", etcdTimeout, o.data)
	case <-signals:
		signal.Stop(signals) // a second one kills this process
	case <-stop:
	}
	select { // until its files can be deleted
	case s := <-started:
		if s.err == nil {
			s.etcd.Server.HardStop()
		}
	case <-time.After(stopTimeout):
	}
	return nil, errStop
}

// startEtcd starts etcd with its sockets in dir and its data in data, which may contain
// the data of an earlier etcd.
func startEtcd(dir, data string, verbosity int) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	if err := configure(cfg, data, etcdEndpoint(dir), "unix://"+filepath.Join(dir, "peer.sock")); err != nil {
		return nil, err
	}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// A single member can elect itself without the default delay of a second.
	cfg.TickMs = 10
	cfg.ElectionMs = 100
	cfg.LogOutputs = []string{filepath.Join(dir, "etcd.log")}
	if verbosity > 0 {
		cfg.LogOutputs = []string{"stderr"}
		cfg.LogLevel = "info"
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case err := <-e.Err():
		e.Close()
		return nil, err
	}
}

// startMember starts an etcd of a cluster. It is ready when a majority runs.
func startMember(m *member) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Name = m.Name
	if err := configure(cfg, m.Data, "unix://"+clientSocket(m.Dir, m.Name), peerURL(m.Name)); err != nil {
		return nil, err
	}
	cfg.InitialCluster = m.Peers
	cfg.LogOutputs = []string{"stderr"}
	if m.Verbosity > 0 {
		cfg.LogLevel = "info"
	}
	return embed.StartEtcd(cfg)
}

// configure sets what etcds have in common.
func configure(cfg *embed.Config, data, clientURL, ownURL string) error {
	client, err := url.Parse(clientURL)
	if err != nil {
		return err
	}
	peer, err := url.Parse(ownURL)
	if err != nil {
		return err
	}
	// etcd 3.6 accepts the path of a socket only to listen. Only the peers of a cluster connect to
	// these URLs: in their working directory the name is a socket.
	advertised, err := url.Parse(peerURL(cfg.Name))
	if err != nil {
		return err
	}
	cfg.Dir = data
	cfg.ListenClientUrls = []url.URL{*client}
	cfg.AdvertiseClientUrls = []url.URL{*advertised}
	cfg.ListenPeerUrls = []url.URL{*peer}
	cfg.AdvertisePeerUrls = []url.URL{*advertised}
	cfg.UnsafeNoFsync = true // the data need not survive a crash of the machine
	cfg.LogLevel = "error"
	return nil
}
