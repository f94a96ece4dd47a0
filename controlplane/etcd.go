package main

import (
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcdEndpoint returns etcd's address: a socket in the data folder. The mode of that
// folder is etcd's access control.
func etcdEndpoint(dir string) string {
	return "unix://" + filepath.Join(dir, "etcd.sock")
}

// startEtcd starts etcd with its sockets in dir and its data in data, which may contain
// the data of an earlier etcd.
func startEtcd(dir, data string, verbosity int) (*embed.Etcd, error) {
	client, err := url.Parse(etcdEndpoint(dir))
	if err != nil {
		return nil, err
	}
	peer, err := url.Parse("unix://" + filepath.Join(dir, "peer.sock"))
	if err != nil {
		return nil, err
	}

	cfg := embed.NewConfig()
	cfg.Dir = data
	cfg.ListenClientUrls = []url.URL{*client}
	cfg.AdvertiseClientUrls = []url.URL{*client}
	cfg.ListenPeerUrls = []url.URL{*peer}
	cfg.AdvertisePeerUrls = []url.URL{*peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true // the data need not survive a crash of the machine
	// A single member can elect itself without the default delay of a second.
	cfg.TickMs = 10
	cfg.ElectionMs = 100
	cfg.LogOutputs = []string{filepath.Join(dir, "etcd.log")}
	cfg.LogLevel = "error"
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
	case <-time.After(time.Minute):
		e.Close()
		return nil, fmt.Errorf("etcd is not ready after 1m")
	}
}
