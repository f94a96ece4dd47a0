package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// memberEnv is set for a process of a cluster. Its value is a member as JSON.
const memberEnv = "CONTROLPLANE_MEMBER"

// readyLine is the line that a member prints when it is ready.
const readyLine = "ready"

// A member is the task of one process of a cluster: etcd or kube-apiserver.
type member struct {
	Name      string // etcd-N or server-N
	Dir       string // of the cluster, and the working directory
	Verbosity int

	Data  string // etcd's
	Peers string // of etcd: "name=URL" with commas

	Port  int // kube-apiserver's
	Etcds []string
	Args  []string
}

func (m *member) isEtcd() bool { return strings.HasPrefix(m.Name, "etcd-") }

// runMember runs one process of a cluster. It returns at the end of standard input, and so
// at the end of the process that started it.
func runMember(text string) error {
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return fmt.Errorf("%s: %w", memberEnv, err)
	}
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	if m.isEtcd() {
		return m.runEtcd(stop)
	}
	return m.runAPIServer(stop)
}

func (m *member) runEtcd(stop <-chan struct{}) error {
	etcd, err := startMember(m)
	if err != nil {
		return err
	}
	defer etcd.Server.HardStop()
	for ready := etcd.Server.ReadyNotify(); ; ready = nil {
		select {
		case <-ready:
			fmt.Println(readyLine)
		case err := <-etcd.Err():
			return err
		case <-stop:
			return nil
		}
	}
}

func (m *member) runAPIServer(stop <-chan struct{}) error {
	creds, err := readCredentials(m.Dir)
	if err != nil {
		return err
	}
	server := startAPIServer(creds, m.Port, m.Etcds, m.Verbosity, m.Args)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- server.waitReady(ctx, creds) }()
	for {
		select {
		case err := <-ready:
			if err != nil {
				return err
			}
			fmt.Println(readyLine)
		case err := <-server.done:
			return errOr(err, errors.New("kube-apiserver returned no error"))
		case <-stop:
			genericapiserver.RequestShutdown()
			return server.wait(stopTimeout)
		}
	}
}
