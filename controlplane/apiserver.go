package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

type apiServer struct {
	url  string
	done chan error // receives the result of the command once
}

func startAPIServer(creds *credentials, port int, etcds []string, verbosity int, extra []string) *apiServer {
	args := []string{
		"--etcd-servers=" + strings.Join(etcds, ","),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--permit-port-sharing=true", // with the reservation of the port
		"--cert-dir=" + creds.dir,
		"--tls-cert-file=" + creds.path("serving.crt"),
		"--tls-private-key-file=" + creds.path("serving.key"),
		"--client-ca-file=" + creds.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + creds.path("tokens.key"),
		"--service-account-signing-key-file=" + creds.path("tokens.key"),
		"--authorization-mode=RBAC",
		// This plugin requires a default service account for every Pod, but no
		// controller here creates them.
		"--disable-admission-plugins=ServiceAccount",
		// A loopback address is not a valid endpoint of the kubernetes Service.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--profiling=false",
		"--v=" + strconv.Itoa(verbosity),
	}
	cmd := apiserver.NewAPIServerCommand()
	cmd.SetArgs(append(args, extra...))
	cmd.SilenceErrors = true
	s := &apiServer{url: "https://127.0.0.1:" + strconv.Itoa(port), done: make(chan error, 1)}
	go func() { s.done <- cmd.Execute() }() // wait receives the result
	return s
}

// waitReady polls /readyz until it returns 200, because a server that does not serve
// yet cannot send an event.
func (s *apiServer) waitReady(ctx context.Context, creds *credentials) error {
	config, err := creds.clientTLS()
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("no response yet")
	for {
		if last = s.probe(ctx, client); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready: %w", last)
		case <-tick.C:
		}
	}
}

func (s *apiServer) probe(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz returned %s: %s", resp.Status, body)
	}
	return nil
}

// wait waits for the end of the graceful stop, but at most d, because an open watch
// would delay it.
func (s *apiServer) wait(d time.Duration) error {
	select {
	case err := <-s.done:
		if err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("stop kube-apiserver: %w", err)
		}
	case <-time.After(d):
	}
	return nil
}
