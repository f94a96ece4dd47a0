// Package localserver runs a controlplane as a separate process, or uses an existing
// cluster. The packages testserver and controllertest use it.
package localserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const startTimeout = 5 * time.Minute

// A Server is a running controlplane or an existing cluster.
type Server struct {
	Kubeconfig string // path of the kubeconfig

	config  *rest.Config
	cmd     *exec.Cmd // nil for an existing cluster
	stdin   io.WriteCloser
	answers <-chan string
	dir     string
}

// Existing returns the cluster of KUBECONFIG if USE_EXISTING_CLUSTER is "true".
// Otherwise it returns nil: KUBECONFIG alone is not enough, because many shells set it to
// a cluster that tests must not change.
func Existing() (*Server, error) {
	if os.Getenv("USE_EXISTING_CLUSTER") != "true" {
		return nil, nil
	}
	file := os.Getenv("KUBECONFIG")
	if file == "" {
		return nil, errors.New("KUBECONFIG is not set: USE_EXISTING_CLUSTER=true requires it")
	}
	s := &Server{Kubeconfig: file}
	return s, s.load()
}

// Open returns the existing cluster, or starts the controlplane that Find returns.
func Open(ctx context.Context, args ...string) (*Server, error) {
	if s, err := Existing(); s != nil || err != nil {
		return s, err
	}
	bin, err := Find(ctx)
	if err != nil {
		return nil, err
	}
	return Start(ctx, bin, args...)
}

// IsOwn reports whether Start started the server, so that Stop deletes it.
func (s *Server) IsOwn() bool { return s.cmd != nil }

// Start starts the controlplane binary bin and returns when the server is ready. If ctx ends
// before that, the process is killed.
func Start(ctx context.Context, bin string, args ...string) (_ *Server, err error) {
	dir, err := os.MkdirTemp("", "ts-") // short, because the path of a socket has at most 104 bytes
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	s := &Server{Kubeconfig: filepath.Join(dir, "kubeconfig"), dir: dir}
	var output strings.Builder
	ready := &lineWriter{ready: make(chan struct{}), answers: make(chan string, 1)}
	s.answers = ready.answers
	s.cmd = exec.Command(bin, append([]string{"-stdin", "-kubeconfig", s.Kubeconfig}, args...)...)
	s.cmd.Env = append(os.Environ(), "TMPDIR="+dir) // so that no file is left, however the process ends
	s.cmd.Stdout = ready
	s.cmd.Stderr = &output
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("%v are over", startTimeout))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := s.cmd.Wait() // also for the end of Stdout
		close(ready.answers)
		ended <- err
	}()
	select {
	case <-ready.ready:
	case err := <-ended:
		return nil, fmt.Errorf("controlplane ended before it was ready: %w\n%s", err, output.String())
	case <-ctx.Done():
		_ = s.cmd.Process.Kill()
		<-ended //nolint:errcheck // it was killed
		return nil, fmt.Errorf("controlplane is not ready: %w\n%s", context.Cause(ctx), output.String())
	}
	s.stdin = &stopper{WriteCloser: s.stdin, ended: ended}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Config returns a copy of the administrator's configuration.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.config) }

// ConfigOf returns a copy of the configuration of a context of the kubeconfig, such as
// "server-0" of a server that was started with -servers.
func (s *Server) ConfigOf(name string) (*rest.Config, error) {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: name},
	).ClientConfig()
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return cfg, nil
}

// Do sends a command to a server that was started with -commands, and waits for the response.
// It is for one goroutine at a time.
func (s *Server) Do(command string) error {
	if _, err := io.WriteString(s.stdin, command+"\n"); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	answer, ok := <-s.answers
	if !ok {
		return fmt.Errorf("%s: the server has ended", command)
	}
	if text, failed := strings.CutPrefix(answer, "error: "); failed {
		return fmt.Errorf("%s: %s", command, text)
	}
	return nil
}

// Stop stops the server, waits for its process and deletes its files. If the server is
// an existing cluster, Stop is a no-op.
func (s *Server) Stop() error {
	if s.cmd == nil {
		return nil
	}
	err := s.stdin.Close()
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *Server) load() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1 // otherwise client-go limits itself to 5 requests a second
	s.config = cfg
	return nil
}

// stopper closes the server's standard input, which stops the server, and waits.
type stopper struct {
	io.WriteCloser
	ended <-chan error
}

func (s *stopper) Close() error {
	_ = s.WriteCloser.Close()
	if err := <-s.ended; err != nil {
		return fmt.Errorf("controlplane: %w", err)
	}
	return nil
}

// lineWriter reads what the server prints. It closes ready when the server is ready, and
// passes on the responses to commands.
type lineWriter struct {
	line    []byte
	ready   chan struct{}
	answers chan string
}

func (w *lineWriter) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != '\n' {
			w.line = append(w.line, b)
			continue
		}
		line := string(w.line)
		w.line = w.line[:0]
		switch {
		case strings.HasPrefix(line, "controlplane: ready"):
			close(w.ready)
		case strings.HasPrefix(line, "ok: "), strings.HasPrefix(line, "error: "):
			w.answers <- line
		}
	}
	return len(p), nil
}
