package gamedays

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// clusterRows are about the API server and the cluster.
func clusterRows() []situation {
	return []situation{
		{
			// A key that is called in that second fails up to nine times.
			name: "away1s", title: "The API server is away for 1 s", sample: true, quiet: 4 * 9,
			do:     func(d *day) { d.away(time.Second) },
			onCall: "nothing", does: "The leader stays. The informers watch again.",
		},
		{
			// The informers wait for client-go's pauses, which double from 0.8s and have a jitter.
			name: "away20s", title: "The API server is away for 20 s", quiet: 25, bound: 30 * time.Second,
			do:     func(d *day) { d.away(20 * time.Second) },
			says:   [][]string{{"Stopped leading", "lastRenewal", "connection refused"}},
			onCall: "the line `Stopped leading` with the error", does: "The leader stops after 10 s. One leads when the API server is back.",
		},
		{
			// A scrape needs a TokenReview. Guard keeps one for 10 minutes while the API server does not respond, so
			// the series and the alert last as long as the outage.
			name: "away5m", title: "The API server is away for 5 minutes", quiet: 140, bound: 30 * time.Second, fires: []string{"ControllerNoLeader", "ControllerWatchStalled"},
			do: func(d *day) {
				d.each((*gate).refuse)
				d.edit("red", "shop", `{"spec":{"replicas":3}}`)
				d.alert("ControllerNoLeader", 50*time.Second)
				time.Sleep(time.Until(d.begin.Add(5 * time.Minute)))
				up, err := d.prom.query("sum by (job) (up)", "job")
				if err != nil || up[name] != 2 {
					d.Errorf("Prometheus scrapes %v replicas after 5 minutes (%v), want 2", up[name], err)
				}
				firing, err := d.prom.query(`ALERTS{alertname="ControllerNoLeader",alertstate="firing"}`, "alertname")
				if err != nil || len(firing) == 0 {
					d.Errorf("ControllerNoLeader does not fire after 5 minutes: %v, %v", firing, err)
				}
				d.each(func(g *gate) { g.open(d) })
			},
			says:   [][]string{{"Stopped leading", "lastRenewal", "connection refused"}},
			onCall: "ControllerNoLeader, until the API server is back; ControllerWatchStalled after 15 minutes", does: "The replicas stay live and ready, their metrics readable, and log a line a minute for each resource.",
			left: "the API server",
		},
		{
			name: "hang60s", title: "All connections to the API server hang for 60 s", quiet: 35, fires: []string{"ControllerNoLeader"},
			do: func(d *day) {
				d.each((*gate).hang)
				d.edit("red", "shop", `{"spec":{"replicas":3}}`)
				d.alert("ControllerNoLeader", 50*time.Second)
				time.Sleep(time.Until(d.begin.Add(time.Minute)))
				d.each((*gate).flow)
			},
			says:   [][]string{{"Stopped leading", "lastRenewal", "deadline exceeded"}},
			onCall: "ControllerNoLeader, the line `Stopped leading` with the error", does: "Each call has a deadline. Dead connections end after 45 s.",
		},
		{
			name: "cutLeader", title: "Only the node of the leader is cut off for 40 s", quiet: 35, bound: 5 * time.Second,
			do:     cutLeader,
			says:   [][]string{{"Stopped leading", "lastRenewal", "connection refused"}, {"Cancelled running calls", "red/shop"}},
			onCall: "the line `Stopped leading` with the error", does: "The leader ends its calls after 10 s. The standby leads after 15 s.",
		},
		{
			name: "throttled", title: "The API server responds 429 to nearly each request for two minutes", quiet: 60, bound: 70 * time.Second,
			fires: []string{"ControllerNoLeader"},
			// client-go pauses in the call for as long as the response says, so the error is that of the deadline. The
			// lines with 429 come after 30s.
			do: func(d *day) {
				throttled(d)
				d.says(time.Second, "The API server refuses the requests of an informer", "429")
			},
			says:   [][]string{{"Stopped leading", "lastRenewal", "deadline exceeded"}},
			onCall: "ControllerNoLeader, lines `The API server refuses` with 429", does: "It waits as long as `Retry-After` says, and sends few requests.", left: "the FlowSchema",
		},
		{
			// client-go reads the file every 50s.
			// ControllerNoLeader may not fire: without a valid token the endpoint cannot review the token of
			// Prometheus either, so no series shows that there is no leader.
			name: "token", title: "A token expires, and its file has a new one after 45 s", setup: setup{bound: true},
			quiet: 60, bound: 70 * time.Second, may: []string{"ControllerNoLeader"},
			do:     expiredToken,
			says:   [][]string{{"Cannot use the Lease", "Unauthorized"}, {"Stopped leading", "Unauthorized"}},
			onCall: "`up == 0`; the line `Cannot use the Lease` with `Unauthorized`", does: "client-go reads the file each minute. One leads with the new token, without a restart.",
			left: "an alert on `up`",
		},
		{
			name: "ca", title: "The API server gets a certificate of another CA, and `ca.crt` changes at once", quiet: 500, bound: 6 * time.Minute,
			fires:  []string{"ControllerNoLeader", "ControllerWatchStalled"},
			do:     replacedCA,
			says:   [][]string{{"The API server cannot be reached by an informer", "x509: certificate signed by unknown authority"}, {"Stopped leading", "x509: certificate signed by unknown authority"}},
			onCall: "ControllerNoLeader, lines with `x509`; ControllerWatchStalled after 15 minutes", does: "client-go reads `ca.crt` every 5 minutes, and connects without a restart.",
			left: "both CAs in `ca.crt` 5 minutes before the change, or a restart",
		},
		{
			name: "forbiddenPatch", title: "The right to patch ConfigMaps is missing for 60 s", quiet: 20, bound: 65 * time.Second,
			do: func(d *day) {
				restore := d.revoke("configmaps", "patch")
				for _, site := range usual {
					d.edit(site.Namespace, site.Name, `{"spec":{"host":"new.`+site.Name+`.`+site.Namespace+`.example.com"}}`)
				}
				d.await(20*time.Second, d.conditionIs("red", "shop", "False: Forbidden: ", "configmaps"))
				time.Sleep(time.Until(d.begin.Add(time.Minute)))
				restore()
			},
			says:   [][]string{{"Reconcile failed", `"forbidden"`, `a Role or ClusterRole must allow verbs [\"patch\"] on resources [\"configmaps\"]`}},
			onCall: "the line `Reconcile failed` with the missing rule; Ready is false with it", does: "It does the rest, and tries again.", left: "the role",
		},
		{
			name: "forbiddenNamespace", title: "The rights to write children are missing in one namespace for 60 s", quiet: 20, bound: 65 * time.Second,
			do: func(d *day) {
				restore := d.revokeIn("blue", "red")
				for _, site := range usual {
					d.edit(site.Namespace, site.Name, `{"spec":{"host":"new.`+site.Name+`.`+site.Namespace+`.example.com"}}`)
				}
				d.await(10*time.Second, func() error { return d.right(func(o object) bool { return o.Metadata.Namespace == "blue" }) })
				d.await(20*time.Second, d.conditionIs("blue", "home", "False: Forbidden: ", "configmaps"))
				time.Sleep(time.Until(d.begin.Add(time.Minute)))
				restore()
			},
			says:   [][]string{{"Reconcile failed", `"forbidden"`, `"blue"`, `a Role or ClusterRole must allow verbs [\"patch\"] on resources [\"configmaps\"]`}},
			onCall: "the line `Reconcile failed` with the missing rule; Ready is false with it", does: "The other namespaces do not wait. It tries again.", left: "the role",
		},
		{
			// client-go logs each attempt: about 20 lines in five minutes for a resource and replica.
			name: "forbiddenWatch", title: "The rights to list and watch Services are missing for 60 s", quiet: 40, bound: 70 * time.Second,
			do: func(d *day) {
				d.aged()
				d.starts()
				restore := d.revoke("services", "list", "watch")
				d.each(func(g *gate) { g.refuse(); g.open(d) }) // new watches
				time.Sleep(time.Minute)
				restore()
				d.ends()
				if err := d.kube().CoreV1().Services("red").Delete(d.Context(), "shop", metav1.DeleteOptions{}); err != nil {
					d.Fatal(err)
				}
			},
			says:   [][]string{{"Failed to watch", `services is forbidden: User \"system:serviceaccount:website-system:website-operator\" cannot`}},
			onCall: "lines `Failed to watch` with the right; ControllerWatchStalled after 15 minutes", does: "It works with the last cache, and watches again by itself.", left: "the role",
		},
		{
			name: "backup", title: "etcd is restored from a backup", setup: setup{data: true}, quiet: 60, bound: time.Minute,
			do:     restored,
			onCall: "the line `Stopped leading`; lines `etcd was restored from a backup`", does: "It lists again and repairs what differs.", left: "what objects younger than the backup made elsewhere",
		},
		{
			name: "stale", title: "The API server of the leader is cut off from etcd for 40 s", setup: setup{server: []string{"-etcds", "3", "-servers", "3", "-commands"}},
			quiet: 30, bound: 5 * time.Second,
			do:     staleServer,
			says:   [][]string{{"Stopped leading", "lastRenewal", "deadline exceeded"}},
			onCall: "the line `Stopped leading` with the error", does: "The leader cannot renew and stops. The standby leads after 15 s.",
		},
		{
			name: "definition", title: "The definition of the websites is deleted, and made again after 30 s with its objects", quiet: 60, bound: 70 * time.Second,
			do:     definitionDeleted,
			says:   [][]string{{"Failed to watch", "websites.web.example.com", "install the CustomResourceDefinition"}},
			onCall: "lines `Failed to watch`: install the CustomResourceDefinition", does: "It cleans up, then watches again without a restart.", left: "the definition and its objects",
		},
		{
			name: "conversion", title: "The conversion webhook of the websites is down for 60 s", quiet: 40, bound: 70 * time.Second,
			do:     conversionDown,
			says:   [][]string{{"Reconcile failed", "conversion webhook for web.example.com/v2, Kind=Website failed"}},
			onCall: "the line `Reconcile failed` with the webhook", does: "It keeps its cache and tries again.", left: "the webhook",
		},
		{
			name: "unserved", title: "The version of the websites is not served for 60 s", quiet: 60, bound: 70 * time.Second,
			do: func(d *day) {
				d.addVersion()
				d.aged()
				d.editDefinition(func(spec map[string]any) { versionOf(spec, "v1")["served"] = false })
				d.await(limit, func() error {
					if _, err := d.sites("red").List(d.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
						return fmt.Errorf("the API server still serves v1: %w", errors.Join(err))
					}
					return nil
				})
				d.starts()
				time.Sleep(time.Minute)
				d.editDefinition(func(spec map[string]any) { versionOf(spec, "v1")["served"] = true })
				d.awaitEdit("red", "shop", `{"spec":{"replicas":3}}`)
			},
			says:   [][]string{{"Failed to watch", "websites.web.example.com", `in version \"v1\"`}},
			onCall: "lines `Failed to watch` with the version; ControllerWatchStalled after 15 minutes", does: "It keeps its cache, and watches again without a restart.", left: "the definition",
		},
	}
}

// aged returns when each replica has run for longer than informer.Set.Timeout. Until then, a Set ends its
// process if a watch is refused, because a new program has a wrong role or lacks a definition. An older one goes on.
func (d *day) aged() {
	d.Helper()
	d.await(limit, func() error {
		for _, p := range d.pods {
			ready := slices.IndexFunc(p.seen(time.Time{}), func(s probe) bool { return s.ready })
			if ready < 0 || time.Since(p.seen(time.Time{})[ready].at) < 22*time.Second {
				return fmt.Errorf("%s is young", p.name)
			}
		}
		return nil
	})
}

// awaitEdit edits a website as soon as the API server allows it. The situation is over then.
func (d *day) awaitEdit(namespace, site, patch string) {
	d.Helper()
	d.await(limit, func() error {
		_, err := d.sites(namespace).Patch(d.Context(), site, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
	d.ends()
}

// away makes the API server refuse connections for a time. A user edits a website meanwhile.
func (d *day) away(period time.Duration) {
	d.each((*gate).refuse)
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	time.Sleep(period)
	d.each(func(g *gate) { g.open(d) })
}

// cutLeader cuts the leader off in a call to the DNS service.
func cutLeader(d *day) {
	leader, standby := d.leader()
	uid := d.uid("red", "shop")
	reached := make(chan struct{}, 100)
	d.service.answerBy(func(r *http.Request) *answer {
		if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, uid) {
			return nil
		}
		reached <- struct{}{}
		return &answer{delay: 25 * time.Second} // longer than the leader may go on, and than the standby waits
	})
	d.edit("red", "shop", `{"spec":{"host":"new.example.com"}}`)
	select {
	case <-reached:
	case <-time.After(limit): // TestBroken comes here
		d.Fatalf("no call for the record within %v", limit)
	}
	d.starts()
	leader.gate.refuse()
	d.await(30*time.Second, func() error {
		if now, _ := d.leader(); now != standby {
			return fmt.Errorf("%s still leads", now.name)
		}
		return nil
	})
	d.Logf("the standby leads after %v", time.Since(d.begin))
	if took := time.Since(d.begin); took > 17*time.Second {
		d.Errorf("the standby leads after %v, want 15s", took)
	}
	d.service.answerBy(nil)
	d.await(30*time.Second, func() error { return d.right(nil) })
	d.Logf("right after %v", time.Since(d.begin))
	time.Sleep(time.Until(d.begin.Add(40 * time.Second)))
	leader.gate.open(d)
}

// throttled gives the operator a priority level without a share. The API server lets one request of such a
// level run at a time, so another client of the operator's account keeps one running: a webhook does not respond to it.
func throttled(d *day) {
	ctx, flow := d.Context(), d.kube().FlowcontrolV1()
	occupy := d.occupier()
	meta := metav1.ObjectMeta{Name: "none-for-" + name}
	_, err := flow.PriorityLevelConfigurations().Create(ctx, &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: meta, Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited,
		Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: ptr.To[int32](0), BorrowingLimitPercent: ptr.To[int32](0),
			LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}},
	}}, metav1.CreateOptions{})
	if err == nil {
		_, err = flow.FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{ObjectMeta: meta, Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: meta.Name}, MatchingPrecedence: 50,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindServiceAccount, ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: system, Name: name}}},
				ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"}}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		}}, metav1.CreateOptions{})
	}
	if err != nil {
		d.Fatal(err)
	}
	release := occupy()
	d.await(limit, func() error { // the API server reads its configuration by a watch
		if n := d.answered(http.StatusTooManyRequests); n == 0 {
			return errors.New("no request is refused")
		}
		return nil
	})
	d.starts()
	d.edit("red", "shop", `{"spec":{"host":"new.example.com"}}`)
	d.each(func(g *gate) { g.refuse(); g.open(d) }) // new watches
	d.alert("ControllerNoLeader", time.Minute)
	time.Sleep(time.Until(d.begin.Add(2 * time.Minute)))
	sent, refused := d.requests(), d.answered(http.StatusTooManyRequests)
	d.Logf("%d requests in two minutes, %d were refused", sent, refused)
	if refused < sent*9/10 {
		d.Errorf("%d of %d requests were refused: this row checks little", refused, sent)
	}
	if sent > 600 { // two replicas, five a second together
		d.Errorf("%d requests in two minutes, want at most 600", sent)
	}
	if err := errors.Join(flow.FlowSchemas().Delete(ctx, meta.Name, metav1.DeleteOptions{}), flow.PriorityLevelConfigurations().Delete(ctx, meta.Name, metav1.DeleteOptions{})); err != nil {
		d.Fatal(err)
	}
	release()
	d.ends()
}

// answered counts the requests since the begin that got a status.
func (d *day) answered(status int) (n int) {
	d.each(func(g *gate) {
		for _, r := range g.since(d.begin) {
			if r.status == status {
				n++
			}
		}
	})
	return n
}

// occupier prepares requests of the operator's account that the API server keeps running: creations of a
// ConfigMap with a label for which a webhook does not respond.
func (d *day) occupier() (occupy func() (release func())) {
	d.Helper()
	released := make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(released) }) }
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		case <-r.Context().Done():
		}
	}))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})
	held := map[string]string{"held": "yes"}
	_, err := d.kube().AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(d.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "held"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "held.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](30),
			ClientConfig:   admissionv1.WebhookClientConfig{URL: ptr.To(webhook.URL), CABundle: ca},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: held},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.OperationAll},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		d.Fatal(err)
	}
	admin := d.config()
	client, err := rest.HTTPClientFor(&rest.Config{BearerToken: d.token(name), TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData, CAFile: admin.CAFile}})
	if err != nil {
		d.Fatal(err)
	}
	var running sync.WaitGroup
	d.Cleanup(func() {
		release()
		running.Wait()
		client.CloseIdleConnections()
		webhook.Close()
	})
	const body = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"held","labels":{"held":"yes"}}}`
	url := admin.Host + "/api/v1/namespaces/blue/configmaps/held?fieldManager=held&dryRun=All"
	return func() func() {
		for range 4 { // when one ends, another begins
			running.Go(func() {
				for {
					req, err := http.NewRequestWithContext(context.WithoutCancel(d.Context()), http.MethodPatch, url, strings.NewReader(body))
					if err != nil {
						return
					}
					req.Header.Set("Content-Type", "application/apply-patch+yaml")
					if resp, err := client.Do(req); err == nil {
						resp.Body.Close()
					}
					select {
					case <-released:
						return
					case <-time.After(5 * time.Millisecond):
					}
				}
			})
		}
		return release
	}
}

// requests logs how many requests the replicas have sent since the begin, by their status.
func (d *day) requests() (n int) {
	for _, p := range d.pods {
		counts := map[string]int{}
		for _, r := range p.gate.since(d.begin) {
			counts[fmt.Sprintf("%s %s %d", r.method, r.path, r.status)]++
			n++
		}
		var all []string
		for text, n := range counts {
			all = append(all, fmt.Sprintf("%5d %s", n, text))
		}
		slices.Sort(all)
		d.Logf("%s sent in %v:\n%s", p.name, time.Since(d.begin), strings.Join(all, "\n"))
	}
	return n
}

// bind returns the object to which the tokens of the replicas are bound.
func (d *day) bind() *authenticationv1.BoundObjectReference {
	d.Helper()
	secrets := d.kube().CoreV1().Secrets(system)
	secret, err := secrets.Get(d.Context(), "tokens", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		secret, err = secrets.Create(d.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "tokens"}}, metav1.CreateOptions{})
	}
	if err != nil {
		d.Fatal(err)
	}
	return &authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: secret.Name, UID: secret.UID}
}

func expiredToken(d *day) {
	if err := d.kube().CoreV1().Secrets(system).Delete(d.Context(), "tokens", metav1.DeleteOptions{}); err != nil {
		d.Fatal(err)
	}
	d.await(time.Minute, func() error { // the API server keeps the answer about a token for 10s
		if d.answered(http.StatusUnauthorized) == 0 {
			return errors.New("the token is still valid")
		}
		return nil
	})
	d.starts()
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	time.Sleep(45 * time.Second)
	for _, p := range d.pods {
		if err := os.WriteFile(filepath.Join(p.dir, "token"), []byte(d.token(name)), 0o600); err != nil {
			d.Fatal(err)
		}
	}
}

func replacedCA(d *day) {
	cert := selfSigned(d)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	for _, p := range d.pods {
		if err := os.WriteFile(filepath.Join(p.dir, "ca.crt"), ca, 0o600); err != nil {
			d.Fatal(err)
		}
		p.gate.present(d, cert)
	}
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	d.ends()
	d.alert("ControllerNoLeader", 50*time.Second)
}

// revoke takes verbs on a core resource from the operator.
func (d *day) revoke(resource string, verbs ...string) (restore func()) {
	d.Helper()
	role, err := d.kube().RbacV1().ClusterRoles().Get(d.Context(), name, metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	var rules []rbacv1.PolicyRule
	for _, rule := range role.Rules {
		if !slices.Contains(rule.Resources, resource) || !slices.Contains(rule.APIGroups, "") {
			rules = append(rules, rule)
			continue
		}
		others, this := *rule.DeepCopy(), *rule.DeepCopy()
		others.Resources = slices.DeleteFunc(others.Resources, func(r string) bool { return r == resource })
		this.Resources = []string{resource}
		this.Verbs = slices.DeleteFunc(this.Verbs, func(v string) bool { return slices.Contains(verbs, v) })
		if len(others.Resources) > 0 {
			rules = append(rules, others)
		}
		if len(this.Verbs) > 0 {
			rules = append(rules, this)
		}
	}
	return d.setRules(role, rules)
}

// revokeIn takes the rights to write children in a namespace. They stay in the others.
func (d *day) revokeIn(namespace string, others ...string) (restore func()) {
	d.Helper()
	rbac := d.kube().RbacV1()
	role, err := rbac.ClusterRoles().Get(d.Context(), name, metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	writer := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name + "-outside-" + namespace}}
	var rules []rbacv1.PolicyRule
	for _, rule := range role.Rules {
		if slices.Contains(rule.APIGroups, "") || slices.Contains(rule.APIGroups, "apps") {
			writer.Rules = append(writer.Rules, rule)
			rule.Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) })
		}
		if len(rule.Verbs) > 0 {
			rules = append(rules, rule)
		}
	}
	if _, err := rbac.ClusterRoles().Create(d.Context(), writer, metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
	for _, other := range others {
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: system}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: writer.Name},
		}
		if _, err := rbac.RoleBindings(other).Create(d.Context(), binding, metav1.CreateOptions{}); err != nil {
			d.Fatal(err)
		}
	}
	return d.setRules(role, rules)
}

// setRules gives the ClusterRole of the operator other rules.
func (d *day) setRules(role *rbacv1.ClusterRole, rules []rbacv1.PolicyRule) (restore func()) {
	d.Helper()
	roles := d.kube().RbacV1().ClusterRoles()
	before := role.Rules
	role.Rules = rules
	if _, err := roles.Update(d.Context(), role, metav1.UpdateOptions{}); err != nil {
		d.Fatal(err)
	}
	return func() {
		role, err := roles.Get(d.Context(), name, metav1.GetOptions{})
		if err == nil {
			role.Rules = before
			_, err = roles.Update(d.Context(), role, metav1.UpdateOptions{})
		}
		if err != nil {
			d.Fatal(err)
		}
	}
}

// serve starts the API server of the day.
func (d *day) serve() {
	d.Helper()
	args := d.setup.server
	if d.setup.data {
		if d.data == "" {
			d.data = filepath.Join(d.TempDir(), "etcd")
			key, err := x509.MarshalECPrivateKey(selfSigned(d).PrivateKey.(*ecdsa.PrivateKey))
			if err == nil {
				err = os.WriteFile(d.data+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}), 0o600)
			}
			if err != nil {
				d.Fatal(err)
			}
		}
		args = append([]string{"-data", d.data}, args...)
		args = append(args, "--", "--service-account-key-file="+d.data+".key", "--service-account-signing-key-file="+d.data+".key")
	}
	first := d.server == nil
	server, err := testserver.Start(args...)
	if err != nil {
		d.Fatal(err)
	}
	d.mu.Lock()
	d.server, d.admin = server, server.Config()
	d.admin.QPS = -1
	d.mu.Unlock()
	if first {
		d.Cleanup(func() {
			if err := d.server.Stop(); err != nil {
				d.Error(err)
			}
		})
	}
}

// restart stops the API server and etcd, calls between, and starts them again.
func (d *day) restart(between func(data string) error) {
	d.Helper()
	err := d.server.Stop()
	if err == nil {
		err = between(d.data)
	}
	if err != nil {
		d.Fatal(err)
	}
	d.serve()
	d.each(func(g *gate) { g.lead(d, d.config()) })
}

// restored restores etcd from a copy: its resource versions go back, and objects that were made after the copy
// are gone.
func restored(d *day) {
	backup := filepath.Join(d.TempDir(), "backup")
	d.restart(func(data string) error { return os.CopyFS(backup, os.DirFS(data)) })
	d.await(limit, func() error { return d.right(nil) })
	d.await(limit, d.allReady)
	d.create("red", "young")
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	d.edit("red", "blog", `{"spec":{"host":"new.example.com"}}`)
	for i := range 200 { // so that the versions go back far
		d.edit("blue", "home", fmt.Sprintf(`{"spec":{"replicas":%d}}`, 2+i%2))
	}
	d.await(limit, func() error { return d.right(nil) })
	young, docs := d.uid("red", "young"), d.uid("red", "docs")
	d.remove("red", "docs")
	d.await(limit, func() error { return d.gone("red", "docs") })
	d.await(limit, func() error { return d.right(nil) })
	d.service.forget(docs) // it comes back, and its record may, too
	d.starts()
	// A gate without its API server breaks streams, after which informers list. A machine refuses connections.
	d.each((*gate).refuse)
	d.restart(func(data string) error {
		if err := os.RemoveAll(data); err != nil {
			return err
		}
		return os.CopyFS(data, os.DirFS(backup))
	})
	d.each(func(g *gate) { g.open(d) })
	d.ends()
	d.edit("red", "shop", `{"spec":{"replicas":5}}`)
	if err := d.kube().CoreV1().ConfigMaps("red").Delete(d.Context(), "blog", metav1.DeleteOptions{}); err != nil {
		d.Fatal(err)
	}
	// No object names the record of a website that the backup lacks: a person deletes it.
	req, err := http.NewRequestWithContext(d.Context(), http.MethodDelete, d.service.url+"/records/"+young, nil)
	if err != nil {
		d.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.Fatal(err)
	}
	resp.Body.Close()
}

// forget removes what the log of the service has about an owner.
func (s *service) forget(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = slices.DeleteFunc(s.calls, func(c call) bool { return c.owner == owner })
}

// staleServer cuts the API server of the leader off from etcd, while the users and the standby use others.
func staleServer(d *day) {
	leader, standby := d.leader()
	for p, server := range map[*pod]string{leader: "server-0", standby: "server-1"} {
		config, err := d.server.ConfigOf(server)
		if err != nil {
			d.Fatal(err)
		}
		p.gate.lead(d, config)
		p.gate.refuse()
		p.gate.open(d)
	}
	users, err := d.server.ConfigOf("server-2")
	if err != nil {
		d.Fatal(err)
	}
	d.mu.Lock()
	d.admin = users
	d.mu.Unlock()
	d.edit("blue", "home", `{"spec":{"replicas":3}}`)
	d.await(limit, func() error { return d.right(nil) })
	time.Sleep(5 * time.Second)
	if now, _ := d.leader(); now != leader {
		d.Fatal("another replica leads")
	}
	d.starts()
	if err := d.server.Do("cut server-0"); err != nil {
		d.Fatal(err)
	}
	d.edit("red", "shop", `{"spec":{"host":"new.example.com"}}`)
	d.await(time.Minute, func() error { return d.right(nil) })
	d.Logf("right after %v, although server-0 is cut off", time.Since(d.begin))
	if now, _ := d.leader(); now != standby {
		d.Error("the standby does not lead")
	}
	d.edit("red", "shop", `{"spec":{"host":"newer.example.com"}}`)
	d.await(10*time.Second, func() error { return d.right(nil) })
	time.Sleep(time.Until(d.begin.Add(40 * time.Second)))
	if err := d.server.Do("join server-0"); err != nil {
		d.Fatal(err)
	}
	d.ends()
	d.edit("red", "shop", `{"spec":{"host":"newest.example.com"}}`)
}

var definitionsGVR = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func (d *day) definitions() dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(d.config()).Resource(definitionsGVR)
}

// editDefinition changes the spec of the definition of the websites.
func (d *day) editDefinition(edit func(spec map[string]any)) {
	d.Helper()
	d.await(limit, func() error {
		definition, err := d.definitions().Get(d.Context(), sitesGVR.GroupResource().String(), metav1.GetOptions{})
		if err == nil {
			edit(definition.Object["spec"].(map[string]any))
			_, err = d.definitions().Update(d.Context(), definition, metav1.UpdateOptions{})
		}
		return err
	})
}

func versionOf(spec map[string]any, name string) map[string]any {
	for _, v := range spec["versions"].([]any) {
		if v := v.(map[string]any); v["name"] == name {
			return v
		}
	}
	return nil
}

func definitionDeleted(d *day) {
	d.aged()
	d.starts()
	crd := sitesGVR.GroupResource().String()
	if err := d.definitions().Delete(d.Context(), crd, metav1.DeleteOptions{}); err != nil {
		d.Fatal(err)
	}
	d.await(limit, func() error {
		_, err := d.definitions().Get(d.Context(), crd, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the definition still exists: %w", errors.Join(err))
		}
		return nil
	})
	gone := time.Now()
	d.Logf("the definition is gone after %v", time.Since(d.begin))
	d.await(limit, func() error { return d.right(nil) })
	d.Logf("all children and records are gone after %v", time.Since(d.begin))
	d.starts() // for the log: the operator can notice the end of the definition now
	time.Sleep(time.Until(gone.Add(30 * time.Second)))
	if err := lab.Install(d.Context(), d.config(), os.DirFS(filepath.Join(d.root, "examples/website/config")), "crd.yaml"); err != nil {
		d.Fatal(err)
	}
	d.ends()
	for _, site := range usual {
		d.create(site.Namespace, site.Name)
	}
}

// addVersion adds the version v2 to the definition of the websites, in which they are stored from then on.
func (d *day) addVersion() {
	d.Helper()
	d.editDefinition(func(spec map[string]any) {
		v2 := (&unstructured.Unstructured{Object: versionOf(spec, "v1")}).DeepCopy().Object
		v2["name"] = "v2"
		versionOf(spec, "v1")["storage"] = false
		spec["versions"] = append(spec["versions"].([]any), v2)
	})
	v2 := dynamic.NewForConfigOrDie(d.config()).Resource(sitesGVR.GroupResource().WithVersion("v2"))
	d.await(limit, func() error {
		_, err := v2.List(d.Context(), metav1.ListOptions{})
		return err
	})
	d.await(limit, func() error { return d.right(nil) })
	for _, site := range usual {
		d.edit(site.Namespace, site.Name, `{"metadata":{"labels":{"stored":"v2"}}}`)
	}
	d.await(limit, func() error { return d.right(nil) })
}

func conversionDown(d *day) {
	d.addVersion()
	addr, err := lab.FreeAddress()
	if err != nil {
		d.Fatal(err)
	}
	d.editDefinition(func(spec map[string]any) {
		spec["conversion"] = map[string]any{"strategy": "Webhook", "webhook": map[string]any{
			"conversionReviewVersions": []any{"v1"}, "clientConfig": map[string]any{"url": "https://" + addr + "/convert"},
		}}
	})
	d.await(limit, func() error {
		if _, err := d.sites("red").List(d.Context(), metav1.ListOptions{}); err == nil {
			return errors.New("the API server still lists websites")
		} else {
			d.Logf("a list: %v", err)
		}
		return nil
	})
	d.starts()
	if err := d.kube().CoreV1().ConfigMaps("red").Delete(d.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		d.Fatal(err)
	}
	time.Sleep(time.Minute)
	d.editDefinition(func(spec map[string]any) { spec["conversion"] = map[string]any{"strategy": "None"} })
	d.awaitEdit("red", "blog", `{"spec":{"replicas":3}}`)
}

// uid returns the uid of a website.
func (d *day) uid(namespace, site string) string {
	d.Helper()
	got, err := d.sites(namespace).Get(context.WithoutCancel(d.Context()), site, metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	return string(got.GetUID())
}
