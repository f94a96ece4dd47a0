package gamedays

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/gamedays/asleep"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

const (
	// limit bounds each wait of a row whose own bound is not shorter.
	limit = 2 * time.Minute

	name   = "website-operator"
	system = "website-system"
)

var sitesGVR = schema.GroupVersionResource{Group: "web.example.com", Version: "v1", Resource: "websites"}

// programs has the built programs, by their folder.
var programs struct {
	sync.Mutex
	dir   string
	built map[string]error
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gamedays-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs.dir, programs.built = dir, map[string]error{}
	code := testserver.Run(m)
	os.RemoveAll(dir)
	os.Exit(code)
}

// build builds the program of a folder once.
func build(t testing.TB, folder string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	bin := filepath.Join(programs.dir, filepath.Base(folder))
	err, ok := programs.built[folder]
	if !ok {
		err = testprocess.Build(context.Background(), bin, folder)
		programs.built[folder] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// A setup is what a row needs. The zero setup is a usual day.
type setup struct {
	replicas int      // 0 means 2
	args     []string // of the replicas
	server   []string // of the command controlplane
	program  string   // the folder of the operator, "" means ./operator
	env      []string // of the replicas
	data     bool     // the API server keeps its data and its key of tokens: see day.restart
	bound    bool     // the tokens of the replicas end with the Secret "tokens"
}

// A day is a world of its own.
type day struct {
	*testing.T
	root    string
	server  *testserver.Server
	pods    []*pod
	service *service
	prom    *prom
	cert    *tls.Certificate
	ca      []byte
	bin     string
	tls     string // the folder with the certificate of the replicas
	setup   setup
	past    []*pod   // which were deleted
	watched []string // the namespaces whose bundles are applied
	data    string   // the folder of etcd, with setup.data
	asleep  string   // the file that sends the operator to sleep, with -broken

	overlooked sync.Map // the UIDs of websites that the API server removed although they had their finalizer

	mu     sync.Mutex
	admin  *rest.Config
	tokens []string // of the replicas and of Prometheus: no log may have them
	others map[string]string

	begin, over time.Time     // of what happens
	took        time.Duration // from over until all was right, if a row has measured it
}

// Usual websites: two tenants.
var usual = []types.NamespacedName{{Namespace: "red", Name: "shop"}, {Namespace: "red", Name: "blog"}, {Namespace: "red", Name: "docs"}, {Namespace: "blue", Name: "home"}}

// newDay starts a world, and returns when all is as it should be.
func newDay(t *testing.T, s setup) *day {
	t.Helper()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	d := &day{T: t, root: root, setup: s, bin: build(t, cmp.Or(s.program, "./operator")), service: newService(t)}
	if *broken {
		d.asleep = filepath.Join(d.TempDir(), "asleep")
		d.setup.env = append(slices.Clone(s.env), asleep.Variable+"="+d.asleep)
	}
	d.serve()
	if err := lab.Install(t.Context(), d.admin, os.DirFS(filepath.Join(root, "examples/website/config")), "crd.yaml"); err != nil {
		t.Fatal(err)
	}
	d.grant()
	d.cert = selfSigned(t)
	d.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.cert.Certificate[0]})
	d.tls = d.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(d.cert.PrivateKey)
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(d.tls, "tls.crt"), d.ca, 0o600),
			os.WriteFile(filepath.Join(d.tls, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	n := s.replicas
	if n == 0 {
		n = 2
	}
	for i := range n {
		d.pods = append(d.pods, d.newPod(fmt.Sprintf("pod-%c", 'a'+i)))
	}
	d.prom = startProm(t, root, d.pods, d.token("prometheus"), d.ca)
	t.Cleanup(func() {
		for _, p := range d.pods {
			p.stop() // if the row has not
		}
		if t.Failed() || *logs {
			for _, p := range slices.Concat(d.past, d.pods) {
				lines := p.log.all()
				for _, l := range lines[max(0, len(lines)-40):] {
					t.Logf("%s %s: %s", l.at.Format("15:04:05.000"), l.pod, l.text)
				}
			}
		}
	})
	d.simulateDeployments()
	for _, ns := range []string{"red", "blue"} {
		if _, err := d.kube().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	d.placeOthers()
	if s.program == "" { // the others have no bundles
		d.settings("red blue")
		d.createBundle("red", "extras", "a", "b")
	}
	for _, p := range d.pods {
		p.start(t)
	}
	for _, site := range usual {
		d.create(site.Namespace, site.Name)
	}
	d.await(limit, func() error { return d.right(nil) })
	d.await(limit, d.allReady)
	d.await(limit, func() error {
		values, err := d.prom.query(`sum by (job) ({__name__=~"controller(_runtime)?_reconcile_total",result="success"})`, "job")
		if err == nil && values[name] == 0 {
			err = errors.New("Prometheus has no sample of a reconcile")
		}
		return err
	})
	d.await(limit, func() error { // and a right to scrape each replica, which outlasts an outage
		values, err := d.prom.query("sum by (job) (up)", "job")
		if err == nil && values[name] != float64(len(d.pods)) {
			err = fmt.Errorf("Prometheus scrapes %v replicas, want %d", values[name], len(d.pods))
		}
		return err
	})
	d.await(limit, d.rests)
	return d
}

// rests returns nil if nothing has happened for a second. Otherwise a row would meet calls that it did not cause.
func (d *day) rests() error {
	deployments, err := d.kube().AppsV1().Deployments("").List(d.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, dep := range deployments.Items {
		if dep.Status.ObservedGeneration != dep.Generation || dep.Status.ReadyReplicas != *dep.Spec.Replicas {
			return fmt.Errorf("Deployment %s/%s is not ready", dep.Namespace, dep.Name)
		}
	}
	since := time.Now().Add(-time.Second)
	if calls := d.service.since(since); len(calls) > 0 {
		return fmt.Errorf("the DNS service was called: %+v", calls)
	}
	for _, p := range d.pods {
		if writes := slices.DeleteFunc(writesOf(p, since), ofLease); len(writes) > 0 {
			return fmt.Errorf("%s wrote: %+v", p.name, writes)
		}
	}
	return nil
}

func selfSigned(t testing.TB) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "game day " + serial.String()}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (d *day) config() *rest.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return rest.CopyConfig(d.admin)
}

func (d *day) kube() kubernetes.Interface { return kubernetes.NewForConfigOrDie(d.config()) }

func (d *day) sites(namespace string) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(d.config()).Resource(sitesGVR).Namespace(namespace)
}

// grant gives the operator the rights that it asks for, and Prometheus those of serve/rbac.yaml.
func (d *day) grant() {
	d.Helper()
	cmd := exec.Command(d.bin, append([]string{"-rules"}, d.setup.args...)...)
	cmd.Stderr = os.Stderr
	data, err := cmd.Output()
	if err != nil {
		d.Fatal(err)
	}
	var rules struct{ Objects, Leases []rbacv1.PolicyRule }
	if err := json.Unmarshal(data, &rules); err != nil {
		d.Fatal(err)
	}
	ctx, kube := d.Context(), d.kube()
	_, err = kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}, metav1.CreateOptions{})
	meta := metav1.ObjectMeta{Name: name}
	for _, account := range []string{name, "prometheus"} {
		_, saErr := kube.CoreV1().ServiceAccounts(system).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
		err = errors.Join(err, saErr)
	}
	subject := func(account string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: system}}
	}
	_, roleErr := kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules.Objects}, metav1.CreateOptions{})
	_, bindErr := kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subject(name),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}, metav1.CreateOptions{})
	_, leaseErr := kube.RbacV1().Roles(system).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules.Leases}, metav1.CreateOptions{})
	_, leaseBindErr := kube.RbacV1().RoleBindings(system).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subject(name),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}}, metav1.CreateOptions{})
	scraper := metav1.ObjectMeta{Name: "prometheus"}
	_, scrapeErr := kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: scraper, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	_, scrapeBindErr := kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: scraper, Subjects: subject("prometheus"),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "prometheus"}}, metav1.CreateOptions{})
	if err := errors.Join(err, roleErr, bindErr, leaseErr, leaseBindErr, scrapeErr, scrapeBindErr); err != nil {
		d.Fatal(err)
	}
}

// token returns a token of a service account, which no log may have.
func (d *day) token(account string) string {
	d.Helper()
	request := &authenticationv1.TokenRequest{}
	if d.setup.bound && account == name {
		request.Spec.BoundObjectRef = d.bind()
	}
	response, err := d.kube().CoreV1().ServiceAccounts(system).CreateToken(d.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		d.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens = append(d.tokens, response.Status.Token)
	return response.Status.Token
}

// newPod prepares a replica.
func (d *day) newPod(called string) *pod {
	d.Helper()
	addr, err := lab.FreeAddress()
	if err != nil {
		d.Fatal(err)
	}
	g := newGate(d, d.config(), d.cert)
	dir := g.kubeconfig(d, d.token(name), d.ca)
	args := []string{"-pod", called, "-kubeconfig", filepath.Join(dir, "kubeconfig"), "-dns", d.service.url, "-listen", addr, "-tls", d.tls, "-spans", filepath.Join(dir, "spans")}
	debug := ""
	if d.setup.program == "" {
		if debug, err = lab.FreeAddress(); err != nil {
			d.Fatal(err)
		}
		args = append(args, "-debug", debug)
	}
	return &pod{name: called, bin: d.bin, args: append(args, d.setup.args...), debug: debug, env: d.setup.env, addr: addr, gate: g, dir: dir,
		log: &journal{pod: called, secrets: func() []string {
			d.mu.Lock()
			defer d.mu.Unlock()
			return append(slices.Clone(d.tokens), secretText)
		}}}
}

// addPod starts one more replica, and returns when it is ready.
func (d *day) addPod(p *pod) {
	d.Helper()
	d.pods = append(d.pods, p)
	d.prom.scrape(d, d.pods)
	p.start(d)
	d.await(limit, func() error {
		if !p.isReady() {
			return fmt.Errorf("%s is not ready", p.name)
		}
		return nil
	})
}

// deletePod ends a replica, and returns when it has ended.
func (d *day) deletePod(p *pod) {
	d.Helper()
	d.stopped(p)
	d.pods = slices.DeleteFunc(d.pods, func(q *pod) bool { return q == p })
	d.past = append(d.past, p)
	d.prom.scrape(d, d.pods)
}

// pages checks that the debug page of each replica responds, and that there are spans.
func (d *day) pages() {
	d.Helper()
	spans := 0
	for _, p := range d.pods {
		resp, err := http.Get("http://" + p.debug + "/debug/controllers")
		if err != nil {
			d.Errorf("the debug page of %s: %v", p.name, err)
			continue
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(text, []byte("websites")) {
			d.Errorf("the debug page of %s: %s, %v", p.name, resp.Status, err)
		}
	}
	for _, p := range slices.Concat(d.past, d.pods) {
		file, err := os.ReadFile(filepath.Join(p.dir, "spans"))
		if err != nil {
			d.Errorf("the spans of %s: %v", p.name, err)
		}
		spans += bytes.Count(file, []byte("\n"))
	}
	if spans == 0 {
		d.Error("no replica has exported a span")
	}
}

// stopped ends a replica, and checks how it ended and what it has logged.
func (d *day) stopped(p *pod) {
	d.Helper()
	if code, took := p.stop(); code != 0 || took > 28*time.Second {
		d.Errorf("%s ended with %d after %v", p.name, code, took)
	}
	if err := p.log.wrong(); err != nil {
		d.Error(err)
	}
}

// simulateDeployments does what the controller of Deployments does, which the API server of the tests lacks.
func (d *day) simulateDeployments() {
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.Context()))
	running.Go(func() {
		for ctx.Err() == nil {
			kube := d.kube()
			all, err := kube.AppsV1().Deployments("").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=website"})
			if err == nil {
				var updates sync.WaitGroup
				slots := make(chan struct{}, 8)
				for _, dep := range all.Items {
					n := *dep.Spec.Replicas
					if dep.Status.ReadyReplicas == n && dep.Status.ObservedGeneration == dep.Generation {
						continue
					}
					dep.Status = appsv1.DeploymentStatus{ObservedGeneration: dep.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n,
						Conditions: []appsv1.DeploymentCondition{
							{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable"},
							{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
						}}
					slots <- struct{}{}
					updates.Go(func() {
						_, _ = kube.AppsV1().Deployments(dep.Namespace).UpdateStatus(ctx, &dep, metav1.UpdateOptions{}) // the next round tries again
						<-slots
					})
				}
				updates.Wait()
			}
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	d.Cleanup(func() { cancel(); running.Wait() })
}

// placeOthers creates objects of others that look like children. Nobody may change them.
func (d *day) placeOthers() {
	d.Helper()
	d.others = map[string]string{}
	for _, ns := range []string{"red", "blue"} {
		made, err := d.kube().CoreV1().ConfigMaps(ns).Create(d.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "theirs", Labels: map[string]string{"app.kubernetes.io/name": "website", "app.kubernetes.io/instance": "shop"}},
			Data:       map[string]string{"HOST": "theirs"},
		}, metav1.CreateOptions{})
		if err != nil {
			d.Fatal(err)
		}
		d.others[ns] = made.ResourceVersion
	}
}

// settings makes the operator see the bundles of namespaces.
func (d *day) settings(namespaces string) {
	d.Helper()
	d.watched = strings.Fields(namespaces)
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"namespaces": namespaces}}
	maps := d.kube().CoreV1().ConfigMaps(system)
	_, err := maps.Create(d.Context(), settings, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(d.Context(), settings, metav1.UpdateOptions{})
	}
	if err != nil {
		d.Fatal(err)
	}
}

// secretText stands in each bundle. No log may have it.
const secretText = "hunter2-of-the-bundle"

// bundle returns a Secret with the manifests of ConfigMaps.
func bundle(namespace, called string, members ...string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: called, Labels: map[string]string{"web.example.com/bundle": "yes"}}, StringData: map[string]string{}}
	for _, m := range members {
		s.StringData[m+".yaml"] = fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s-%s}, data: {password: %s}}", called, m, secretText)
	}
	return s
}

func (d *day) createBundle(namespace, called string, members ...string) {
	d.Helper()
	if _, err := d.kube().CoreV1().Secrets(namespace).Create(d.Context(), bundle(namespace, called, members...), metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
}

// othersUntouched checks the objects of placeOthers in the namespaces that exist.
func (d *day) othersUntouched() {
	d.Helper()
	for ns, version := range d.others {
		got, err := d.kube().CoreV1().ConfigMaps(ns).Get(d.Context(), "theirs", metav1.GetOptions{})
		if err != nil || got.ResourceVersion != version {
			d.Errorf("an object of others in %s has changed: %v, %v", ns, got, err)
		}
	}
}

func (d *day) site(namespace, site string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "web.example.com/v1", "kind": "Website", "metadata": map[string]any{"namespace": namespace, "name": site},
		"spec": map[string]any{"image": "example.com/site:1", "host": site + "." + namespace + ".example.com", "replicas": int64(2)},
	}}
}

func (d *day) create(namespace, site string) {
	d.Helper()
	if _, err := d.sites(namespace).Create(d.Context(), d.site(namespace, site), metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
}

// edit merges a patch into a website.
func (d *day) edit(namespace, site, patch string) {
	d.Helper()
	if _, err := d.sites(namespace).Patch(d.Context(), site, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		d.Fatal(err)
	}
}

func (d *day) remove(namespace, site string) {
	d.Helper()
	if err := d.sites(namespace).Delete(d.Context(), site, metav1.DeleteOptions{}); err != nil {
		d.Fatal(err)
	}
}

// right returns nil if everything is as the websites say. Those for which skip returns true may fail.
func (d *day) right(skip func(object) bool) error {
	c := &checker{client: d.kube().Discovery().RESTClient(), records: func() map[string]string {
		records := d.service.Records()
		d.overlooked.Range(func(uid, _ any) bool {
			delete(records, uid.(string))
			return true
		})
		return records
	}}
	return errors.Join(c.right(d.Context(), skip), c.bundles(d.Context(), d.watched))
}

// gone returns nil if a website does not exist.
func (d *day) gone(namespace, site string) error {
	_, err := d.sites(namespace).Get(d.Context(), site, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("website %s/%s still exists: %w", namespace, site, errors.Join(err))
}

// await asks until cond returns nil. It must within a time.
func (d *day) await(within time.Duration, cond func() error) time.Duration {
	d.Helper()
	begin := time.Now()
	for {
		err := cond()
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > within {
			d.Fatalf("after %v: %v", within, err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-d.Context().Done():
			d.Fatal(err)
		}
	}
}

func (d *day) allReady() error {
	for _, p := range d.pods {
		if !p.isReady() {
			return fmt.Errorf("%s is not ready: %s", p.name, p.probesText(time.Now()))
		}
	}
	return nil
}

// leader returns the replica that holds the Lease, and another one.
func (d *day) leader() (leader, standby *pod) {
	d.Helper()
	d.await(limit, func() error {
		lease, err := d.kube().CoordinationV1().Leases(system).Get(d.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		leader = nil
		for _, p := range d.pods {
			holder := ""
			if lease.Spec.HolderIdentity != nil {
				holder, _, _ = strings.Cut(*lease.Spec.HolderIdentity, "_") // client-go adds a UUID
			}
			if holder == p.name {
				leader = p
			} else {
				standby = p
			}
		}
		if leader == nil {
			return errors.New("no replica holds the Lease")
		}
		return nil
	})
	return leader, standby
}

// starts notes that it begins to happen. A row whose do does not call it begins at once.
func (d *day) starts() { d.begin = time.Now() }

// ends notes that it is over, and the library has to make things right. Without a call, it is over when do returns.
func (d *day) ends() { d.over = time.Now() }

// alert waits until an alert fires.
func (d *day) alert(alert string, within time.Duration) {
	d.Helper()
	d.await(within, func() error {
		fired, err := d.prom.fired(d.begin)
		if err == nil && !fired[alert] {
			err = fmt.Errorf("%s does not fire: %v fired", alert, fired)
		}
		return err
	})
}

// says waits until a replica logs a line that has all texts. It returns how long after the start of the situation.
func (d *day) says(within time.Duration, texts ...string) time.Duration {
	d.Helper()
	var at time.Time
	d.await(within, func() error {
		for _, p := range slices.Concat(d.past, d.pods) {
			for _, l := range p.log.all() {
				if !l.at.Before(d.begin) && hasAll(l.text, texts) {
					at = l.at
					return nil
				}
			}
		}
		return fmt.Errorf("no line has %q", texts)
	})
	return at.Sub(d.begin)
}

func hasAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// lines returns the lines since the situation began.
func (d *day) lines() (all []line) {
	for _, p := range slices.Concat(d.past, d.pods) {
		for _, l := range p.log.all() {
			if !l.at.Before(d.begin) {
				all = append(all, l)
			}
		}
	}
	slices.SortFunc(all, func(a, b line) int { return a.at.Compare(b.at) })
	return all
}

// each calls f for the gate of each replica.
func (d *day) each(f func(*gate)) {
	for _, p := range d.pods {
		f(p.gate)
	}
}

// summary counts the lines by message.
func summary(lines []line) string {
	counts := map[string]int{}
	var order []string
	for _, l := range lines {
		key := l.message()
		if l.isError() {
			key = "ERROR " + key
		}
		if counts[key]++; counts[key] == 1 {
			order = append(order, key)
		}
	}
	var b bytes.Buffer
	for _, key := range order {
		fmt.Fprintf(&b, "%4d %s\n", counts[key], key)
	}
	return b.String()
}
