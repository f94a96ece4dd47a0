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
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const startTimeout = 5 * time.Minute

// stopTimeout bounds the graceful stop. A controlplane stops within ten seconds.
var stopTimeout = 30 * time.Second

// A Server is a running controlplane or an existing cluster.
type Server struct {
	Kubeconfig string // path of the kubeconfig

	config  *rest.Config
	cmd     *exec.Cmd // nil for an existing cluster
	stdin   io.WriteCloser
	answers <-chan string
	dir     string
	stop    func() error // stops the process once
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
	output := new(tail)
	ready := &lineWriter{ready: make(chan struct{}), answers: make(chan string, 1)}
	s.answers = ready.answers
	s.cmd = exec.Command(bin, append([]string{"-stdin", "-kubeconfig", s.Kubeconfig}, args...)...)
	s.cmd.Env = append(os.Environ(), "TMPDIR="+dir) // so that no file is left, however the process ends
	s.cmd.Stdout = ready
	s.cmd.Stderr = output
	s.cmd.WaitDelay = 5 * time.Second // for a child of a killed process, which may keep its output open
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
		return nil, fmt.Errorf("controlplane ended before it was ready: %w\n%s", err, output)
	case <-ctx.Done():
		_ = s.cmd.Process.Kill()
		<-ended //nolint:errcheck // it was killed
		return nil, fmt.Errorf("controlplane is not ready: %w\n%s", context.Cause(ctx), output)
	}
	s.stop = sync.OnceValue(func() error { return errors.Join(s.end(ended, output), os.RemoveAll(dir)) })
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

// Stop stops the server, waits for its process and deletes its files. It kills a process that
// does not end. Later calls return the same error. If the server is an existing cluster, Stop is
// a no-op.
func (s *Server) Stop() error {
	if s.cmd == nil {
		return nil
	}
	return s.stop()
}

// end closes the server's standard input, which stops the server, and waits for its process. If
// the process failed or is killed, the error has the end of its output.
func (s *Server) end(ended <-chan error, output *tail) error {
	_ = s.stdin.Close()
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("controlplane: %w\n%s", err, output)
		}
		return nil
	case <-timer.C:
		_ = s.cmd.Process.Kill()
		<-ended //nolint:errcheck // it was killed
		return fmt.Errorf("controlplane was killed, because it still ran %v after its standard input was closed\n%s", stopTimeout, output)
	}
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

// A tail is the end of what a process wrote.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	const most = 16 << 10 // a controlplane that failed prints the last 8 KiB of its log
	*t = append(*t, p...)
	if len(*t) > 2*most {
		*t = append((*t)[:0], (*t)[len(*t)-most:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(*t) }

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
