package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// reexec makes the test binary run as the program, so that the tests need no second
// build of Kubernetes.
const reexec = "CONTROLPLANE_TEST_RUN"

// shortEtcdTimeout makes the program wait less long for etcd.
const shortEtcdTimeout = "CONTROLPLANE_TEST_ETCD_TIMEOUT"

func TestMain(m *testing.M) {
	if os.Getenv(reexec) != "" {
		if d, err := time.ParseDuration(os.Getenv(shortEtcdTimeout)); err == nil {
			etcdTimeout = d
		}
		main()
		return
	}
	os.Exit(m.Run())
}

// process is a controlplane that a test has started with its own TMPDIR.
type process struct {
	*exec.Cmd
	tmp, kubeconfig, readyFile string
	stdin                      io.WriteCloser
	stderr                     io.Reader
	lines                      *bufio.Scanner // of standard output
	client                     kubernetes.Interface
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := begin(t, args...)
	go func() { _, _ = io.Copy(os.Stderr, p.stderr) }() // ends with the process
	if !p.lines.Scan() || !strings.HasPrefix(p.lines.Text(), "controlplane: ready after ") {
		t.Fatalf("first line of output = %q, %v, want the line about readiness", p.lines.Text(), p.lines.Err())
	}
	t.Log(p.lines.Text())
	cfg, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if p.client, err = kubernetes.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	return p
}

// begin starts a controlplane that is not ready yet.
func begin(t *testing.T, args ...string) *process {
	t.Helper()
	// The path of a socket must fit in 104 bytes, and the names of t.TempDir are long.
	tmp, err := os.MkdirTemp("", "cp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	p := &process{
		tmp:        filepath.Join(tmp, "t"),
		kubeconfig: filepath.Join(tmp, "kubeconfig"),
		readyFile:  filepath.Join(tmp, "ready"),
	}
	if err := os.Mkdir(p.tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	p.Cmd = exec.Command(os.Args[0], append([]string{"-kubeconfig", p.kubeconfig, "-ready-file", p.readyFile}, args...)...)
	p.Env = append(os.Environ(), reexec+"=1", "TMPDIR="+p.tmp)
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(stdout)
	if p.stdin, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if p.stderr, err = p.StderrPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// stop calls end. It fails the test unless the process ends within ten seconds with exit
// code 0 and leaves no file. The time in which the machine does not run the test does not
// count.
func (p *process) stop(t *testing.T, end func() error) {
	t.Helper()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	ticker := time.NewTicker(100 * time.Millisecond) // drops the ticks that the test misses
	defer ticker.Stop()
	var err error
	running := true
	for ticks := 0; running && ticks < 100; ticks++ {
		select {
		case err = <-ended:
			running = false
		case <-ticker.C:
		}
	}
	switch {
	case running:
		t.Error("still running ten seconds after the stop")
	case err != nil:
		t.Errorf("exit: %v, want 0", err)
	}
	for _, file := range []string{p.kubeconfig, p.readyFile} {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left behind", filepath.Base(file))
		}
	}
	left, err := os.ReadDir(p.tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("%s is left behind in the temporary folder", e.Name())
	}
}

func TestServer(t *testing.T) {
	p := start(t)
	t.Run("only the owner can read the credentials", func(t *testing.T) {
		if _, err := os.Stat(p.readyFile); err != nil {
			t.Errorf("ready file: %v", err)
		}
		if info, err := os.Stat(p.kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode of the kubeconfig = %v, %v, want 0600", info.Mode().Perm(), err)
		}
		dirs, err := filepath.Glob(filepath.Join(p.tmp, "controlplane-*"))
		if err != nil || len(dirs) != 1 {
			t.Fatalf("data folders = %v, %v, want one", dirs, err)
		}
		if info, err := os.Stat(dirs[0]); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("mode of the data folder = %v, %v, want 0700", info.Mode().Perm(), err)
		}
		for _, pattern := range []string{"*.key", "*.crt"} {
			files, _ := filepath.Glob(filepath.Join(dirs[0], pattern))
			if len(files) == 0 {
				t.Errorf("no %s in the data folder", pattern)
			}
			for _, file := range files {
				if info, err := os.Stat(file); err != nil || info.Mode().Perm()&fs.FileMode(0o077) != 0 {
					t.Errorf("mode of %s = %v, %v, want none for others", filepath.Base(file), info.Mode().Perm(), err)
				}
			}
		}
	})
	t.Run("version", func(t *testing.T) {
		v, err := p.client.Discovery().ServerVersion()
		if err != nil {
			t.Fatal(err)
		}
		if v.Major != "1" || v.Minor != "37" {
			t.Errorf("server version = %s.%s, want 1.37", v.Major, v.Minor)
		}
	})
	t.Run("owner references cascade", func(t *testing.T) { cascades(t, p.client) })
	t.Run("a deleted namespace is emptied and removed", func(t *testing.T) { emptiesNamespace(t, p.client) })
	t.Run("RBAC rejects", func(t *testing.T) {
		cfg, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Impersonate.UserName = "nobody"
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("listing Secrets as nobody: %v, want forbidden", err)
		}
	})
	p.stop(t, func() error { return p.Process.Signal(syscall.SIGTERM) })
}

// TestStdin checks that the end of standard input stops the server, and that arguments
// after -- reach kube-apiserver.
func TestStdin(t *testing.T) {
	p := start(t, "-stdin", "--", "--runtime-config=apps/v1=false")
	groups, err := p.client.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups.Groups {
		if g.Name == "apps" {
			t.Error("apps is served, want it disabled by the argument after --")
		}
	}
	p.stop(t, p.stdin.Close)
}

// TestDataInUse starts a second controlplane with the -data of a running one. A signal and the end
// of standard input stop it in time. Without them it ends with an error that names the folder.
func TestDataInUse(t *testing.T) {
	data := t.TempDir()
	first := start(t, "-data", data)
	for _, tt := range []struct {
		name string
		end  func(*process) error
	}{
		{"signal", func(p *process) error { return p.Process.Signal(syscall.SIGTERM) }},
		{"end of standard input", func(p *process) error { return p.stdin.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := begin(t, "-data", data, "-stdin")
			go func() { _, _ = io.Copy(os.Stderr, p.stderr) }() // ends with the process
			p.awaitFile(t, "controlplane-*/etcd.sock")          // etcd opens its data after that
			p.stop(t, func() error { return tt.end(p) })
		})
	}
	t.Run("no signal", func(t *testing.T) {
		t.Setenv(shortEtcdTimeout, "3s")
		p := begin(t, "-data", data)
		text, err := io.ReadAll(p.stderr)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Wait()
		if want := "start etcd: etcd did not start in 3s: another process may use -data " + data; err == nil || !strings.Contains(string(text), want) {
			t.Errorf("exit: %v, stderr = %q, want an error with %q", err, text, want)
		}
	})
	first.stop(t, func() error { return first.Process.Signal(syscall.SIGTERM) })
}

// awaitFile waits until the temporary folder has a file of the pattern.
func (p *process) awaitFile(t *testing.T, pattern string) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for limit := time.After(2 * time.Minute); ; {
		if found, err := filepath.Glob(filepath.Join(p.tmp, pattern)); err != nil || len(found) > 0 {
			return
		}
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatalf("no file %s after two minutes", pattern)
		}
	}
}

// TestStaleReadyFile holds that the ready file of a controlplane that was killed is gone before the
// next one is ready.
func TestStaleReadyFile(t *testing.T) {
	data, ready := t.TempDir(), filepath.Join(t.TempDir(), "ready")
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := start(t, "-data", data)
	p := begin(t, "-ready-file", ready, "-data", data, "-stdin") // which waits for the data
	go func() { _, _ = io.Copy(os.Stderr, p.stderr) }()          // ends with the process
	p.awaitFile(t, "controlplane-*/etcd.sock")
	if _, err := os.Stat(ready); err == nil {
		t.Error("the ready file is left while the server starts")
	}
	p.stop(t, p.stdin.Close)
	first.stop(t, func() error { return first.Process.Signal(syscall.SIGTERM) })
}

// TestNoCollector checks that nobody orphans dependents without the garbage collector, while the
// namespace controller runs.
func TestNoCollector(t *testing.T) {
	p := start(t, "-garbage-collector=false")
	maps := p.client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}); err != nil {
		t.Fatal(err)
	}
	emptiesNamespace(t, p.client) // which takes five seconds; a collector takes one
	owner, err := maps.Get(t.Context(), "owner", metav1.GetOptions{})
	if err != nil || len(owner.Finalizers) != 1 || owner.Finalizers[0] != metav1.FinalizerOrphanDependents {
		t.Errorf("the finalizers are %v, %v, want the one for orphans", owner.Finalizers, err)
	}
	p.stop(t, func() error { return p.Process.Signal(syscall.SIGTERM) })
}

func TestBadFlags(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
		code int
	}{
		{name: "unknown", args: []string{"-nonsense"}, want: "nonsense", code: 2},
		{name: "argument", args: []string{"please"}, want: `"please"`, code: 2},
		{name: "negative verbosity", args: []string{"-v=-1"}, want: "-v -1", code: 2},
		{name: "even number of etcds", args: []string{"-etcds=2"}, want: "-etcds is 2", code: 2},
		{name: "no server", args: []string{"-servers=0"}, want: "-servers is 0", code: 2},
		{name: "commands for one process", args: []string{"-commands"}, want: "-commands", code: 2},
		{name: "port", args: []string{"--", "--secure-port=6443"}, want: "--secure-port", code: 2},
		{name: "address", args: []string{"--", "--bind_address=0.0.0.0"}, want: "--bind-address", code: 2},
		{name: "kube-apiserver's", args: []string{"--", "--no-such-flag"}, want: "no-such-flag", code: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], tt.args...)
			cmd.Env = append(os.Environ(), reexec+"=1", "TMPDIR="+t.TempDir())
			var stderr strings.Builder
			cmd.Stderr = &stderr
			err := cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != tt.code {
				t.Errorf("exit code = %d (%v), want %d", code, err, tt.code)
			}
			if got := strings.TrimSpace(stderr.String()); !strings.Contains(got, tt.want) || (tt.code == 2 && strings.Contains(got, "\n")) {
				t.Errorf("stderr = %q, want one line with %q", got, tt.want)
			}
		})
	}
}

// cascades checks that the garbage collector deletes the dependent of a deleted owner.
func cascades(t *testing.T, client kubernetes.Interface) {
	maps := client.CoreV1().ConfigMaps("default")
	owner, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	child, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "child",
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID,
		}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := awaitDeleted(t.Context(), maps, child.Name, child.ResourceVersion); err != nil {
		t.Error(err)
	}
}

// emptiesNamespace checks that the namespace controller empties a deleted namespace.
func emptiesNamespace(t *testing.T, client kubernetes.Interface) {
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short-lived"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps(ns.Name).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "inside"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Namespaces().Delete(t.Context(), ns.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := awaitDeleted(t.Context(), client.CoreV1().Namespaces(), ns.Name, ns.ResourceVersion); err != nil {
		t.Error(err)
	}
}

func awaitDeleted(ctx context.Context, client interface {
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}, name, resourceVersion string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	w, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: resourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was not deleted: %w", name, ctx.Err())
		case event, ok := <-w.ResultChan():
			if !ok {
				return fmt.Errorf("the watch of %s ended before it was deleted", name)
			}
			if event.Type == watch.Deleted {
				return nil
			}
		}
	}
}

// do sends a command to a cluster and requires the answer.
func (p *process) do(t *testing.T, command, want string) {
	t.Helper()
	if _, err := io.WriteString(p.stdin, command+"\n"); err != nil {
		t.Fatal(err)
	}
	if !p.lines.Scan() || !strings.HasPrefix(p.lines.Text(), want) {
		t.Fatalf("%s: the answer is %q, want %q", command, p.lines.Text(), want)
	}
}

// TestCluster stops, pauses, restarts and cuts off processes of a cluster: a majority of
// etcds suffices, the load balancer passes over what is down, and a kube-apiserver that is
// cut off serves old reads until it is joined again. One that is late about a resource also
// writes all else.
func TestCluster(t *testing.T) {
	p := start(t, "-etcds", "3", "-servers", "2", "-commands")
	for range 2 {
		p.lines.Scan() // KUBECONFIG and the contexts
	}
	var servers [2]corev1client.ConfigMapInterface
	var secrets [2]corev1client.SecretInterface
	for n := range servers {
		cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: p.kubeconfig},
			&clientcmd.ConfigOverrides{CurrentContext: fmt.Sprintf("server-%d", n)}).ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		core := kubernetes.NewForConfigOrDie(cfg).CoreV1()
		servers[n], secrets[n] = core.ConfigMaps("default"), core.Secrets("default")
	}
	shared := p.client.CoreV1().ConfigMaps("default")
	// create retries: while the etcds elect a leader, a request times out.
	create := func(client corev1client.ConfigMapInterface, name string) {
		t.Helper()
		var err error
		for range 10 {
			_, err = client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err == nil || apierrors.IsAlreadyExists(err) {
				return
			}
			t.Logf("create %s: %v", name, err)
		}
		t.Fatal(err)
	}
	// old reads what the server has, however old.
	old := func(client corev1client.ConfigMapInterface, name string) error {
		t.Helper()
		_, err := client.Get(t.Context(), name, metav1.GetOptions{ResourceVersion: "0"})
		return err
	}
	// seen waits until a watch of the server shows the object.
	seen := func(client corev1client.ConfigMapInterface, name string) {
		t.Helper()
		w, err := client.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if e, ok := <-w.ResultChan(); !ok || e.Type != watch.Added {
			t.Fatalf("event %v of %s, want added", e.Type, name)
		}
	}

	create(servers[0], "before")
	seen(servers[1], "before")
	p.do(t, "cut server-1", "ok: cut server-1")
	create(servers[0], "during")
	create(shared, "balanced") // by server-0: the other is passed over
	seen(servers[0], "during")
	if err := old(servers[1], "before"); err != nil {
		t.Errorf("a server that is cut off does not serve from its cache: %v", err)
	}
	if err := old(servers[1], "during"); !apierrors.IsNotFound(err) {
		t.Errorf("a server that is cut off: %v, want not found", err)
	}
	p.do(t, "join server-1", "ok: join server-1")
	seen(servers[1], "during")

	p.do(t, "delay server-1 configmaps", "ok")
	create(servers[0], "delayed")
	seen(servers[0], "delayed")
	if _, err := secrets[1].Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a server whose ConfigMaps are delayed does not write a Secret: %v", err)
	}
	if err := old(servers[1], "delayed"); !apierrors.IsNotFound(err) {
		t.Errorf("a server whose ConfigMaps are delayed: %v, want not found", err)
	}
	p.do(t, "join server-1", "ok")
	seen(servers[1], "delayed")
	p.do(t, "delay server-1", `error: "delay server-1": write a resource`)
	p.do(t, "cut server-1 configmaps", `error: "cut server-1 configmaps": write a resource`)

	p.do(t, "pause etcd-0", "ok")
	p.do(t, "pause etcd-0", "error: etcd-0 is paused")
	p.do(t, "kill server-0", "ok")
	p.do(t, "await server-0", "error: server-0 is stopped")
	create(servers[1], "two-of-three")
	seen(shared, "two-of-three")
	p.do(t, "resume etcd-0", "ok")
	p.do(t, "stop etcd-1", "ok")
	p.do(t, "start server-0", "ok")
	p.do(t, "await server-0", "ok")
	seen(servers[0], "two-of-three")
	p.do(t, "start etcd-1", "ok")
	p.do(t, "await etcd-1", "ok")
	p.do(t, "kill etcd-2", "ok")
	create(shared, "again")

	p.do(t, "cut etcd-0", `error: etcd-0 is an etcd`)
	p.do(t, "boil server-0", `error: unknown command "boil"`)
	p.do(t, "kill", `error: no process ""`)
	// The end of standard input also ends the wait for a server that cannot become ready.
	for _, command := range []string{"kill etcd-0", "kill server-0", "start server-0"} {
		p.do(t, command, "ok")
	}
	if _, err := io.WriteString(p.stdin, "await server-0\n"); err != nil {
		t.Fatal(err)
	}
	p.stop(t, p.stdin.Close)
}

// TestClusterStopsWhileStarting sends a signal while the processes of a cluster start.
func TestClusterStopsWhileStarting(t *testing.T) {
	p := begin(t, "-etcds", "3", "-servers", "2", "-v", "1")
	stderr := bufio.NewReader(p.stderr)
	if _, err := stderr.ReadString('\n'); err != nil { // of the first etcd
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }() // ends with the process
	p.stop(t, func() error { return p.Process.Signal(syscall.SIGTERM) })
}

// TestReservePort holds that no other process gets the port while it is reserved.
func TestReservePort(t *testing.T) {
	port, release, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if l, err := net.Listen("tcp", address); err == nil {
		l.Close()
		t.Error("another process could listen")
	}
	release()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
