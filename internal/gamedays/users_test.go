package gamedays

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// operatorUser is the user of the replicas' tokens.
const operatorUser = "system:serviceaccount:" + system + ":" + name

// userRows are about users, tenants, webhooks and the external service.
func userRows() []situation {
	return slices.Concat(objectRows(), admissionRows(), deletionRows(), editRows(), serviceRows())
}

func objectRows() []situation {
	return []situation{
		{
			name: "malformed", sample: true, title: "A stored website that does not decode", bound: 15 * time.Second,
			do: func(d *day) {
				restore := d.loosen("/properties/spec/properties/replicas", map[string]any{"x-kubernetes-preserve-unknown-fields": true})
				d.await(limit, func() error {
					d.starts()
					return d.tryEdit("red", "blog", `{"spec":{"replicas":"many"}}`)
				})
				restore()
				d.edit("red", "shop", `{"spec":{"image":"example.com/site:2"}}`)
				d.await(10*time.Second, d.siteRight("red", "shop"))
				d.create("blue", "new")
				d.await(10*time.Second, d.siteRight("blue", "new"))
				d.addPod(d.newPod("pod-c"))
				d.alert("ControllerObjectMalformed", 90*time.Second)
				d.ends()
				d.edit("red", "blog", `{"spec":{"replicas":3}}`)
				d.await(15*time.Second, func() error {
					values, err := d.prom.query(`max by (job) (controller_informer_malformed_objects)`, "job")
					if err == nil && values[name] != 0 {
						err = fmt.Errorf("%v objects are malformed", values[name])
					}
					return err
				})
			},
			fires: []string{"ControllerObjectMalformed"}, says: [][]string{{"red/blog", "replicas"}},
			onCall: "ControllerObjectMalformed; a line names object and field", does: "Goes on without this object.", left: "correct or delete the object, and tighten the schema",
		},
		{
			name: "big", title: "A website of 1.4 MB, and one that fills the 1.5 MiB of etcd", bound: 15 * time.Second, quiet: 60,
			do: func(d *day) {
				size, err := d.createBig("red", "big", 1_400_000)
				if err != nil {
					d.Fatal(err)
				}
				took := d.await(30*time.Second, d.siteRight("red", "big"))
				d.edit("red", "big", `{"spec":{"image":"example.com/site:2"}}`)
				edited := d.await(30*time.Second, d.siteRight("red", "big"))
				d.Logf("a website of %d bytes: right after %v, after an edit %v", size, took, edited)
				size = d.createBrim("red", "brim")
				d.Logf("the API server accepts %d bytes", size)
				d.starts()
				d.edit("red", "shop", `{"spec":{"image":"example.com/site:2"}}`)
				d.await(10*time.Second, d.siteRight("red", "shop"))
				time.Sleep(30 * time.Second)
				d.Logf("%d writes of brim: %v", d.writes(d.begin, "brim"), d.condition("red", "brim"))
				if n := d.writes(d.begin, "brim"); n > 12 {
					d.Errorf("%d writes of a website that does not fit, want at most 12", n)
				}
				d.edit("red", "brim", `{"metadata":{"annotations":{"pad":null}}}`)
			},
			says:   [][]string{{"Reconcile failed", `"Namespace":"red","Name":"brim"`, "too large"}},
			onCall: "a line `Reconcile failed`", does: "1.4 MB works. At the limit its own fields do not fit, and it retries slowly.", left: "the tenant makes the object smaller",
		},
		{
			// The usual range of the test's API server has 254 addresses of Services, too few for these rows.
			setup: setup{server: []string{"--", "--service-cluster-ip-range=10.0.0.0/16"}},
			name:  "flood", title: "A tenant creates 300 websites in ten seconds", bound: 3 * time.Minute, quiet: 100, may: []string{"ControllerLatencyBudgetBurnFast"},
			do:     func(d *day) { d.flood(300, 10*time.Second) },
			onCall: "ControllerLatencyBudgetBurnFast if it takes more than a minute", does: "Namespaces take turns, so an edit of another tenant is done in a second.", left: "a quota of websites",
		},
		{
			setup: setup{server: []string{"--", "--service-cluster-ip-range=10.0.0.0/16"}},
			name:  "flood2k", title: "A tenant creates 2,000 websites in a minute", soak: true, bound: 10 * time.Minute, quiet: 500, may: []string{"ControllerLatencyBudgetBurnFast"},
			do:     func(d *day) { d.flood(2000, time.Minute) },
			onCall: "ControllerLatencyBudgetBurnFast", does: "Namespaces take turns, so an edit of another tenant is done in a second.", left: "a quota of websites",
		},
		{
			name: "typo", title: "A typo that only the Deployment's validation rejects", quiet: 20,
			do: func(d *day) {
				d.loosen("/properties/spec/properties/replicas", map[string]any{"type": "integer", "format": "int32"}) // without its bounds
				d.await(limit, func() error {
					d.starts()
					return d.tryEdit("red", "docs", `{"spec":{"replicas":-2}}`)
				})
				d.await(10*time.Second, d.conditionIs("red", "docs", "False", "Rejected", "spec.replicas"))
				d.edit("red", "shop", `{"spec":{"image":"example.com/site:2"}}`)
				d.await(10*time.Second, d.siteRight("red", "shop"))
				time.Sleep(60*time.Second - time.Since(d.begin))
				if n := d.writes(d.begin, "/docs"); n > 20 {
					d.Errorf("%d writes for the typo, want at most 20", n)
				} else {
					d.Logf("%d writes for the typo", n)
				}
				d.ends()
				d.edit("red", "docs", `{"spec":{"replicas":2}}`)
			},
			says:   [][]string{{"Reconcile failed", `"Namespace":"red","Name":"docs"`, "spec.replicas: Invalid value: -2"}},
			onCall: "nothing; the status of the website and a line tell why", does: "Retries slowly, and at once after an edit.", left: "the tenant corrects the value",
		},
	}
}

// loosen replaces a part of the websites' schema, until restore is called.
func (d *day) loosen(part string, by any) (restore func()) {
	d.Helper()
	definitions := dynamic.NewForConfigOrDie(d.config()).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	path := "/spec/versions/0/schema/openAPIV3Schema" + part
	crd, err := definitions.Get(d.Context(), "websites.web.example.com", metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	var was any = crd.Object
	for key := range strings.SplitSeq(path[1:], "/") {
		switch v := was.(type) {
		case map[string]any:
			was = v[key]
		case []any:
			was = v[0]
		}
	}
	replace := func(value any) {
		d.Helper()
		data, err := json.Marshal([]any{map[string]any{"op": "replace", "path": path, "value": value}})
		if err == nil {
			_, err = definitions.Patch(d.Context(), crd.GetName(), types.JSONPatchType, data, metav1.PatchOptions{})
		}
		if err != nil {
			d.Fatal(err)
		}
	}
	replace(by)
	return func() { d.Helper(); replace(was) }
}

// createBig creates a website with so many bytes of labels and annotations that about size bytes are stored.
// The API server limits annotations to 256 KB, but not the number of labels.
func (d *day) createBig(namespace, site string, size int) (stored int, err error) {
	o := d.site(namespace, site)
	labels, used := map[string]string{}, 1500
	domain := strings.Repeat(strings.Repeat("d", 49)+".", 5) + "com"
	value := strings.Repeat("v", 63)
	for i := 0; used < size-20_000; i++ {
		key := domain + "/" + fmt.Sprintf("%063d", i)
		labels[key] = value
		used += 2*len(key) + len(value) + 14 // managedFields have the key again
	}
	o.SetLabels(labels)
	o.SetAnnotations(map[string]string{"pad": strings.Repeat("p", max(0, size-used))})
	created, err := d.sites(namespace).Create(d.Context(), o, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	data, err := created.MarshalJSON()
	return len(data), err
}

// createBrim creates a website to which the API server can add less than a finalizer, and returns its size.
func (d *day) createBrim(namespace, site string) int {
	d.Helper()
	size := 4_500_000
	for i, step := range []int{100_000, 5_000, 200} {
		for ; ; size -= step {
			if size < 1_000_000 {
				d.Fatal("the API server accepts no large website")
			}
			if step == 200 {
				d.starts()
			}
			_, err := d.createBig(namespace, site, size)
			if err == nil {
				break
			} else if i == 0 && size%1_000_000 == 0 || step == 200 {
				d.Logf("%d bytes: %.200v", size, err)
			}
		}
		if step > 200 {
			d.remove(namespace, site)
			d.await(limit, func() error { return d.gone(namespace, site) })
			size += step
		}
	}
	return size
}

// flood creates websites of one tenant, while another one edits a website and waits until it is right.
func (d *day) flood(n int, within time.Duration) {
	d.Helper()
	var creating sync.WaitGroup
	next := make(chan int)
	for range 8 {
		creating.Go(func() {
			sites := d.sites("red")
			for i := range next {
				if _, err := sites.Create(d.Context(), d.site("red", "site-"+strconv.Itoa(i)), metav1.CreateOptions{}); err != nil {
					d.Error(err)
				}
			}
		})
	}
	created := make(chan time.Duration, 1)
	go func() {
		pace := time.NewTicker(within / time.Duration(n))
		defer pace.Stop()
		for i := range n {
			next <- i
			<-pace.C
		}
		close(next)
		creating.Wait()
		created <- time.Since(d.begin)
	}()
	var waits []time.Duration
	var took time.Duration
	deadline := time.Now().Add(within + 10*time.Minute)
	for i := 1; ; i++ {
		d.edit("blue", "home", fmt.Sprintf(`{"spec":{"host":"home-%d.blue.example.com"}}`, i))
		waits = append(waits, d.await(15*time.Minute, d.siteRight("blue", "home")))
		select {
		case took = <-created:
			d.ends()
		default:
		}
		if len(d.service.Records()) == n+len(usual) || time.Now().After(deadline) {
			break
		}
		time.Sleep(time.Second)
	}
	slices.Sort(waits)
	if middle := waits[len(waits)/2]; middle > 2*time.Second { // without turns by namespace it was 7s with 300, and 27s with 2,000
		d.Errorf("an edit of the other tenant waited %v in the middle, want at most 2s", middle)
	}
	leader, _ := d.leader()
	memory, err := d.prom.query(`max by (job) (max_over_time(process_resident_memory_bytes[30m]))`, "job")
	d.Logf("%d websites were created in %v, and had their records after %v; %d edits of the other tenant waited %v in the middle, %v at most; %.0f MB; %d requests of the leader, %d lines; %v",
		n, took, time.Since(d.begin), len(waits), waits[len(waits)/2], waits[len(waits)-1], memory[name]/1e6, len(leader.gate.since(d.begin)), len(d.lines()), err)
}

// tryEdit is edit, and returns its error.
func (d *day) tryEdit(namespace, site, patch string) error {
	_, err := d.sites(namespace).Patch(d.Context(), site, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// get decodes an object of the API server.
func (d *day) get(path string) (o object, err error) {
	data, err := d.kube().Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(d.Context())
	if err != nil {
		return o, err
	}
	return o, json.Unmarshal(data, &o)
}

var childPaths = map[string]string{"configmap": "/api/v1/namespaces/%s/configmaps/%s", "service": "/api/v1/namespaces/%s/services/%s", "deployment": "/apis/apps/v1/namespaces/%s/deployments/%s"}

// siteRight returns a function that checks one website, and reads no other.
func (d *day) siteRight(namespace, site string) func() error {
	return func() error {
		o, err := d.get(fmt.Sprintf("/apis/web.example.com/v1/namespaces/%s/websites/%s", namespace, site))
		if err != nil {
			return err
		}
		children := map[string]map[string]object{}
		for kind, path := range childPaths {
			child, err := d.get(fmt.Sprintf(path, namespace, site))
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			children[kind] = map[string]object{}
			if err == nil {
				children[kind][namespace+"/"+site] = child
			}
		}
		return (&checker{}).one(o, children, d.service.Records()[o.Metadata.UID])
	}
}

// condition returns the condition Ready of a website.
func (d *day) condition(namespace, site string) string {
	o, err := d.get(fmt.Sprintf("/apis/web.example.com/v1/namespaces/%s/websites/%s", namespace, site))
	if err != nil {
		return err.Error()
	}
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			return fmt.Sprintf("%s: %s: %s (generation %d of %d)", c.Status, c.Reason, c.Message, c.ObservedGeneration, o.Metadata.Generation)
		}
	}
	return "no condition Ready"
}

// conditionIs returns a function that checks that the condition Ready of the website's generation has all texts.
func (d *day) conditionIs(namespace, site string, texts ...string) func() error {
	return func() error {
		if got := d.condition(namespace, site); !hasAll(got, texts) {
			return fmt.Errorf("the condition of %s/%s is %q, want %q", namespace, site, got, texts)
		}
		return nil
	}
}

// writes counts the writes of the replicas since a time whose path has a part.
func (d *day) writes(since time.Time, part string) (n int) {
	for _, p := range slices.Concat(d.past, d.pods) {
		for _, r := range p.gate.since(since) {
			if r.method != http.MethodGet && strings.Contains(r.path, part) && !strings.Contains(r.path, "/events") && !strings.Contains(r.path, "/leases") {
				n++
			}
		}
	}
	return n
}

func admissionRows() []situation {
	return []situation{
		{
			name: "policy", title: "A policy rejects the operator's Deployments for a minute", bound: 70 * time.Second, quiet: 60,
			do: func(d *day) {
				lift := d.forbidDeployments()
				d.starts()
				for _, site := range usual {
					d.edit(site.Namespace, site.Name, `{"spec":{"image":"example.com/site:2"}}`)
				}
				for _, site := range usual {
					d.await(10*time.Second, d.conditionIs(site.Namespace, site.Name, "False", "Rejected", "no Deployments on a Friday"))
				}
				time.Sleep(60*time.Second - time.Since(d.begin))
				if n := d.writes(d.begin, "/deployments"); n > 10*len(usual) {
					d.Errorf("%d rejected writes in a minute, want at most %d", n, 10*len(usual))
				} else {
					d.Logf("%d rejected writes in a minute", n)
				}
				lift()
			},
			says:   [][]string{{"Reconcile failed", "no Deployments on a Friday"}},
			onCall: "`Reconcile failed` with the policy's message; status; after 10 minutes ControllerObjectsFailing", does: "Retries slowly; the delay grows with the fault, up to 15 minutes.", left: "change the policy",
		},
		{
			name: "mutate", title: "A policy rewrites the image of each Deployment", quiet: 40,
			do: func(d *day) {
				lift := d.mirrorImages()
				d.starts()
				for _, site := range usual {
					d.edit(site.Namespace, site.Name, `{"spec":{"image":"example.com/site:2"}}`)
				}
				time.Sleep(60 * time.Second)
				n := d.writes(d.begin, "/deployments")
				d.Logf("%d writes of Deployments in a minute; %s", n, d.condition("red", "shop"))
				if n > 3*len(usual) {
					d.Errorf("%d writes of Deployments in a minute, want at most %d", n, 3*len(usual))
				}
				lift()
				d.ends()
				for _, site := range usual {
					d.edit(site.Namespace, site.Name, `{"spec":{"image":"example.com/site:3"}}`)
				}
			},
			// Without the edits, an event after ten minutes would end it: see ssa.Memory.
			says:   [][]string{{"stores another value than the applied one", "image", "apply the stored value"}},
			onCall: "a line names the field and the cure", does: "Applies once for each edit, and does not fight.", left: "apply the stored image; after the policy edit the websites",
		},
		{
			// Three children take 15 s, which is the Timeout of a call: the next call goes on where it ended.
			name: "slowhook", title: "A webhook takes 5 s for each write of a child", bound: 40 * time.Second, quiet: 6,
			do: func(d *day) {
				lift := d.slowWrites(5 * time.Second)
				d.starts()
				for _, site := range usual {
					d.edit(site.Namespace, site.Name, `{"spec":{"image":"example.com/site:2","host":"`+site.Name+`-2.example.com"}}`)
				}
				d.create("blue", "new")
				took := d.await(45*time.Second, func() error { return d.right(nil) })
				d.Logf("right after %v with the webhook; %d writes", took, d.writes(d.begin, ""))
				d.edit("blue", "home", `{"spec":{"replicas":5}}`)
				time.Sleep(60*time.Second - time.Since(d.begin))
				lift()
			},
			onCall: "one line for a new website: its call timed out", does: "Goes on; a new website needs two calls.", left: "a faster webhook",
		},
	}
}

// asOperator returns a client with the operator's rights.
func (d *day) asOperator() kubernetes.Interface {
	config := d.config()
	config.Impersonate = rest.ImpersonationConfig{UserName: operatorUser, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	return kubernetes.NewForConfigOrDie(config)
}

// probeDeployment returns what the API server stores if the operator applies a Deployment. Nothing is stored.
func (d *day) probeDeployment() (*appsv1.Deployment, error) {
	patch := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"probe"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"website","image":"example.com/probe:1"}]}}}}`
	return d.asOperator().AppsV1().Deployments("blue").Patch(d.Context(), "probe", types.ApplyPatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: "probe", DryRun: []string{metav1.DryRunAll}})
}

func deploymentRules() *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: childRule("apps", "deployments")}}}
}

func childRule(group string, resources ...string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
	}
}

// forbidDeployments creates a policy that rejects Deployments of the operator, until lift is called. Both return
// when the API server has noticed.
func (d *day) forbidDeployments() (lift func()) {
	d.Helper()
	meta := metav1.ObjectMeta{Name: "fridays.example.com"}
	client := d.kube().AdmissionregistrationV1()
	_, err := client.ValidatingAdmissionPolicies().Create(d.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: deploymentRules(),
		Validations:      []admissionregistrationv1.Validation{{Expression: `request.userInfo.username != "` + operatorUser + `"`, Message: "no Deployments on a Friday"}},
	}}, metav1.CreateOptions{})
	_, bindErr := client.ValidatingAdmissionPolicyBindings().Create(d.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
	}}, metav1.CreateOptions{})
	if err := errors.Join(err, bindErr); err != nil {
		d.Fatal(err)
	}
	d.await(limit, func() error {
		if _, err := d.probeDeployment(); err == nil || !strings.Contains(err.Error(), "on a Friday") {
			return fmt.Errorf("the policy does not reject: %v", err)
		}
		return nil
	})
	return func() {
		d.Helper()
		if err := client.ValidatingAdmissionPolicyBindings().Delete(d.Context(), meta.Name, metav1.DeleteOptions{}); err != nil {
			d.Fatal(err)
		}
		d.await(limit, func() error { _, err := d.probeDeployment(); return err })
	}
}

// mirrorImages creates a policy that replaces the image of Deployments, until lift is called.
func (d *day) mirrorImages() (lift func()) {
	d.Helper()
	meta := metav1.ObjectMeta{Name: "mirror.example.com"}
	client := d.kube().AdmissionregistrationV1()
	_, err := client.MutatingAdmissionPolicies().Create(d.Context(), &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints:   deploymentRules(),
		ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
		Mutations: []admissionregistrationv1.Mutation{{
			PatchType: admissionregistrationv1.PatchTypeJSONPatch,
			JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[JSONPatch{op: "replace", path: "/spec/template/spec/containers/0/image", value: "mirror.example.com/site"}]`},
		}},
	}}, metav1.CreateOptions{})
	_, bindErr := client.MutatingAdmissionPolicyBindings().Create(d.Context(), &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: meta, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: meta.Name}}, metav1.CreateOptions{})
	if err := errors.Join(err, bindErr); err != nil {
		d.Fatal(err)
	}
	mirrors := func(want bool) func() error {
		return func() error {
			dep, err := d.probeDeployment()
			if err != nil {
				return err
			}
			if image := dep.Spec.Template.Spec.Containers[0].Image; strings.HasPrefix(image, "mirror") != want {
				return fmt.Errorf("the policy stores %s", image)
			}
			return nil
		}
	}
	d.await(limit, mirrors(true))
	return func() {
		d.Helper()
		if err := client.MutatingAdmissionPolicyBindings().Delete(d.Context(), meta.Name, metav1.DeleteOptions{}); err != nil {
			d.Fatal(err)
		}
		d.await(limit, mirrors(false))
	}
}

// slowWrites creates a webhook that takes a time for each write of a child, until lift is called.
func (d *day) slowWrites(delay time.Duration) (lift func()) {
	d.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if review.Request.UserInfo.Username == operatorUser {
			select {
			case <-time.After(delay):
			case <-r.Context().Done():
			}
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{*d.cert}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	d.Cleanup(server.Close)
	client := d.kube().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := client.Create(d.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
		Name: "slow.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(10)),
		SideEffects:  new(admissionregistrationv1.SideEffectClassNone),
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new(server.URL + "/"), CABundle: d.ca},
		Rules:        []admissionregistrationv1.RuleWithOperations{childRule("apps", "deployments"), childRule("", "configmaps", "services")},
	}}}, metav1.CreateOptions{})
	if err != nil {
		d.Fatal(err)
	}
	slow := func(want bool) func() error {
		return func() error {
			begin := time.Now()
			_, err := d.probeDeployment()
			if took := time.Since(begin); err == nil && (took >= delay) != want {
				err = fmt.Errorf("a write takes %v", took)
			}
			return err
		}
	}
	d.await(limit, slow(true))
	return func() {
		d.Helper()
		if err := client.Delete(d.Context(), "slow", metav1.DeleteOptions{}); err != nil {
			d.Fatal(err)
		}
		d.await(limit, slow(false))
	}
}

func deletionRows() []situation {
	deleted := func(propagation metav1.DeletionPropagation, after func(d *day)) func(d *day) {
		return func(d *day) {
			uid := d.uid("red", "shop")
			if err := d.sites("red").Delete(d.Context(), "shop", metav1.DeleteOptions{PropagationPolicy: &propagation}); err != nil {
				d.Fatal(err)
			}
			d.await(15*time.Second, func() error { return d.gone("red", "shop") })
			if host, ok := d.service.Records()[uid]; ok {
				d.Errorf("the record %s is left", host)
			}
			after(d)
		}
	}
	childrenGone := func(d *day) {
		for kind, path := range childPaths {
			d.await(15*time.Second, func() error {
				_, err := d.get(fmt.Sprintf(path, "red", "shop"))
				if apierrors.IsNotFound(err) {
					return nil
				}
				return fmt.Errorf("its %s is left: %v", kind, err)
			})
		}
		d.ends()
		d.create("red", "shop")
	}
	return []situation{
		{
			name: "namespace", title: "A namespace is deleted with all its websites", quiet: 1,
			do: func(d *day) {
				delete(d.others, "red")
				if err := d.kube().CoreV1().Namespaces().Delete(d.Context(), "red", metav1.DeleteOptions{}); err != nil {
					d.Fatal(err)
				}
				took := d.await(60*time.Second, func() error {
					_, err := d.kube().CoreV1().Namespaces().Get(d.Context(), "red", metav1.GetOptions{})
					if apierrors.IsNotFound(err) {
						return nil
					}
					return fmt.Errorf("the namespace exists: %v", err)
				})
				d.Logf("the namespace was gone after %v", took)
				for _, l := range d.lines() {
					if l.isError() {
						d.Errorf("a deletion is no error: %s", l.text)
					}
				}
			},
			onCall: "nothing", does: "Deletes the records. The namespace ends at once.",
		},
		{
			name: "orphan", title: "A website is deleted with orphan propagation, and created again", quiet: 30,
			do: deleted(metav1.DeletePropagationOrphan, func(d *day) {
				for kind, path := range childPaths {
					child, err := d.get(fmt.Sprintf(path, "red", "shop"))
					if err != nil || len(child.Metadata.OwnerReferences) > 0 {
						d.Errorf("its %s is %+v, want it without owner: %v", kind, child.Metadata, err)
					}
				}
				d.create("red", "shop")
				d.await(10*time.Second, d.conditionIs("red", "shop", "False", "Rejected"))
				d.Log(d.condition("red", "shop"))
				for kind, path := range childPaths {
					child, err := d.get(fmt.Sprintf(path, "red", "shop"))
					if err != nil || len(child.Metadata.OwnerReferences) > 0 {
						d.Errorf("its %s is %+v, want it untouched: %v", kind, child.Metadata, err)
					}
				}
				d.ends()
				d.deleteChildren("red", "shop")
			}),
			says:   [][]string{{"Reconcile failed", `"Namespace":"red","Name":"shop"`}},
			onCall: "the status of the new website names the objects in its way", does: "Leaves orphans alone, also for a new website of the name.", left: "delete the orphans, or make the website their owner",
		},
		{
			name: "foreground", title: "A website is deleted with foreground propagation", do: deleted(metav1.DeletePropagationForeground, childrenGone), quiet: 20,
			onCall: "nothing", does: "Deletes the record, and creates no children again.",
		},
		{
			name: "background", title: "A website is deleted with background propagation", sample: true, do: deleted(metav1.DeletePropagationBackground, childrenGone), quiet: 20,
			onCall: "nothing", does: "Deletes the record. The garbage collector deletes the children.",
		},
	}
}

// child sends a request for a child of the website by kubectl's means.
func (d *day) child(ctx context.Context, method, kind, namespace, site, patch string) error {
	client := d.kube().Discovery().RESTClient()
	path := fmt.Sprintf(childPaths[kind], namespace, site)
	if method == http.MethodDelete {
		return client.Delete().AbsPath(path).Do(ctx).Error()
	}
	return client.Patch(types.MergePatchType).AbsPath(path).Body([]byte(patch)).Do(ctx).Error()
}

func (d *day) patchChild(kind, namespace, site, patch string) {
	d.Helper()
	if err := d.child(d.Context(), http.MethodPatch, kind, namespace, site, patch); err != nil {
		d.Fatal(err)
	}
}

func (d *day) deleteChildren(namespace, site string) {
	d.Helper()
	for kind := range childPaths {
		if err := d.child(d.Context(), http.MethodDelete, kind, namespace, site, ""); err != nil {
			d.Fatal(err)
		}
	}
}

func editRows() []situation {
	return []situation{
		{
			name: "edits", title: "Users edit and delete children, and remove their labels", sample: true, quiet: 20,
			do: func(d *day) {
				d.patchChild("deployment", "red", "shop", `{"spec":{"replicas":9,"template":{"spec":{"containers":[{"name":"website","image":"evil"}]}}}}`)
				d.patchChild("configmap", "red", "shop", `{"data":{"HOST":"evil"}}`)
				d.patchChild("service", "red", "shop", `{"spec":{"ports":[{"port":80,"targetPort":1}],"selector":{"app.kubernetes.io/instance":"evil"}}}`)
				d.deleteChildren("blue", "home")
				for kind := range childPaths {
					d.patchChild(kind, "red", "blog", `{"metadata":{"labels":null}}`)
				}
			},
			onCall: "nothing", does: "Restores fields, objects and labels within a second.",
		},
		{
			// A port is merged by its number, so an apply adds the operator's port to the user's.
			name: "port", title: "A user replaces the port of a child Service", quiet: 20,
			do: func(d *day) {
				d.patchChild("service", "red", "shop", `{"spec":{"ports":[{"name":"http","port":81}]}}`)
				d.await(10*time.Second, d.conditionIs("red", "shop", "False", "Rejected", "spec.ports[1].name"))
				d.edit("red", "docs", `{"spec":{"image":"example.com/site:2"}}`)
				d.await(10*time.Second, d.siteRight("red", "docs"))
				d.ends()
				if err := d.child(d.Context(), http.MethodDelete, "service", "red", "shop", ""); err != nil {
					d.Fatal(err)
				}
			},
			says:   [][]string{{"Reconcile failed", `"Namespace":"red","Name":"shop"`, "spec.ports[1].name"}},
			onCall: "nothing; status and line have the API server's reason", does: "Adds its port, which is rejected without a name.", left: "delete the Service, or the extra port",
		},
		{
			name: "disowned", title: "A user removes the owner references of children", quiet: 20,
			do: func(d *day) {
				for kind := range childPaths {
					d.patchChild(kind, "red", "shop", `{"metadata":{"ownerReferences":null}}`)
				}
				d.await(10*time.Second, d.conditionIs("red", "shop", "False", "Rejected"))
				d.Log(d.condition("red", "shop"))
				d.edit("red", "docs", `{"spec":{"image":"example.com/site:2"}}`)
				d.await(10*time.Second, d.siteRight("red", "docs"))
				d.ends()
				d.deleteChildren("red", "shop")
			},
			says:   [][]string{{"Reconcile failed", `"Namespace":"red","Name":"shop"`}},
			onCall: "the status names the objects without an owner", does: "Leaves them alone: they could be somebody else's.", left: "delete the children, or restore the reference",
		},
		{
			name: "finalizer", title: "A user removes the finalizer", quiet: 40,
			do: func(d *day) {
				const none = `{"metadata":{"finalizers":null}}`
				d.edit("red", "shop", none)
				d.await(10*time.Second, func() error {
					o, err := d.sites("red").Get(d.Context(), "shop", metav1.GetOptions{})
					if err == nil && len(o.GetFinalizers()) == 0 {
						err = errors.New("no finalizer")
					}
					return err
				})
				// The service is down, so the deletion waits, and the user has no patience.
				uid := d.uid("red", "blog")
				d.service.answerBy(func(r *http.Request) *answer {
					if r.Method == http.MethodDelete {
						return &answer{status: http.StatusServiceUnavailable}
					}
					return nil
				})
				d.remove("red", "blog")
				d.await(10*time.Second, func() error {
					if !slices.ContainsFunc(d.service.since(d.begin), func(c call) bool { return c.method == http.MethodDelete && c.owner == uid }) {
						return errors.New("no cleanup")
					}
					return nil
				})
				forced := time.Now()
				d.edit("red", "blog", none)
				d.await(10*time.Second, func() error { return d.gone("red", "blog") })
				d.service.answerBy(nil)
				time.Sleep(10 * time.Second)
				if _, ok := d.service.Records()[uid]; !ok {
					d.Error("the record is gone: then the library does more than the page says")
				}
				for _, l := range d.lines() {
					if l.at.After(forced) {
						d.Logf("%s %s", l.at.Sub(forced), l.text)
					}
				}
				d.ends()
				d.service.Server.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodDelete, "/records/"+uid, nil)) // a person does
			},
			onCall: "nothing", does: "Stores it again. During a deletion the record is left.", left: "delete the record",
		},
		{
			name: "lease", title: "A user writes nonsense into the Lease", bound: 40 * time.Second, quiet: 40,
			do: func(d *day) {
				leases := d.kube().CoordinationV1().Leases(system)
				patch := `{"spec":{"holderIdentity":"nonsense"}}`
				if _, err := leases.Patch(d.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
					d.Fatal(err)
				}
				d.ends()
				d.edit("red", "shop", `{"spec":{"replicas":3}}`)
			},
			// The line should have the holder: see the report.
			says:   [][]string{{"Stopped leading", `"lease"`}},
			onCall: "the line `Stopped leading`", does: "Stops its work at once; a replica leads when the Lease has expired.",
		},
		{
			name: "zero", title: "A user scales everything to 0 and back", quiet: 20,
			do: func(d *day) {
				for _, site := range usual {
					d.edit(site.Namespace, site.Name, `{"spec":{"replicas":0}}`)
				}
				d.await(15*time.Second, func() error { return d.right(nil) })
				for _, site := range usual {
					d.edit(site.Namespace, site.Name, `{"spec":{"replicas":2}}`)
				}
				d.await(15*time.Second, func() error { return d.right(nil) })
				deployments := func(n int32) {
					for _, site := range usual { // kubectl scale deployment --all
						client := d.kube().AppsV1().Deployments(site.Namespace)
						scale, err := client.GetScale(d.Context(), site.Name, metav1.GetOptions{})
						if err == nil {
							scale.Spec.Replicas = n
							scale.ResourceVersion = ""
							_, err = client.UpdateScale(d.Context(), site.Name, scale, metav1.UpdateOptions{})
						}
						if err != nil {
							d.Fatal(err)
						}
					}
				}
				deployments(0)
			},
			onCall: "nothing", does: "Follows the websites, and restores Deployments that were scaled.",
		},
	}
}

func serviceRows() []situation {
	all := func(d *day, image string) {
		d.Helper()
		for _, site := range usual {
			d.edit(site.Namespace, site.Name, fmt.Sprintf(`{"spec":{"image":"example.com/site:%s","host":"%s-%s.example.com"}}`, image, site.Name, image))
		}
	}
	calls := func(d *day, most int) {
		d.Helper()
		if n := len(d.service.since(d.begin)); n > most {
			d.Errorf("%d calls of the service, want at most %d", n, most)
		} else {
			d.Logf("%d calls of the service", n)
		}
	}
	return []situation{
		{
			name: "slowdns", title: "The external service takes 9 s for each call", bound: 15 * time.Second, quiet: 20,
			do: func(d *day) {
				d.service.answerBy(func(*http.Request) *answer { return &answer{delay: 9 * time.Second} })
				all(d, "2")
				took := d.await(40*time.Second, func() error { return d.right(nil) })
				d.Logf("right after %v with the slow service", took)
				d.edit("red", "shop", `{"spec":{"replicas":3}}`)
				time.Sleep(60*time.Second - time.Since(d.begin))
				calls(d, 40)
				d.service.answerBy(nil)
			},
			onCall: "nothing", does: "Children at once, records and status after the call.",
		},
		{
			// The first minute has 15 calls of each website, so four websites fail more than the 60 calls of an hour
			// that page. A minute's fault of another service should not: see the report.
			name: "nodns", title: "The external service is down for 90 s", bound: 100 * time.Second, quiet: 20 * len(usual), may: []string{"ControllerErrorBudgetBurnFast", "ControllerObjectsFailing"},
			do: func(d *day) {
				up := d.service.down(d)
				all(d, "2")
				for _, site := range usual {
					d.await(25*time.Second, d.conditionIs(site.Namespace, site.Name, "False", "no response"))
				}
				time.Sleep(90*time.Second - time.Since(d.begin))
				up()
			},
			says:   [][]string{{"Reconcile failed", "put the DNS record", "check that the service runs"}},
			onCall: "`Reconcile failed` and the status, with the cause", does: "Applies the children, and retries with growing delays, up to 5 minutes.",
		},
		{
			name: "dns429", title: "The external service responds with 429 for a minute", bound: 75 * time.Second, quiet: 20 * len(usual), may: []string{"ControllerErrorBudgetBurnFast"},
			do: func(d *day) {
				d.service.answerBy(func(*http.Request) *answer { return &answer{status: http.StatusTooManyRequests} })
				all(d, "2")
				for _, site := range usual {
					d.await(25*time.Second, d.conditionIs(site.Namespace, site.Name, "False", "429"))
				}
				time.Sleep(60*time.Second - time.Since(d.begin))
				calls(d, 20*len(usual))
				d.service.answerBy(nil)
			},
			says:   [][]string{{"Reconcile failed", "put the DNS record", "429"}},
			onCall: "`Reconcile failed` and the status, with the response", does: "Retries with growing delays.",
		},
		{
			name: "forgets", title: "The external service forgets all records", quiet: 20,
			do: func(d *day) {
				for owner := range d.service.Records() {
					d.service.Server.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodDelete, "/records/"+owner, nil))
				}
				time.Sleep(30 * time.Second)
				if n := len(d.service.Records()); n > 0 {
					d.Errorf("%d records are back: then the library does more than the page says", n)
				}
				d.ends()
				for _, site := range usual {
					d.edit(site.Namespace, site.Name, `{"metadata":{"annotations":{"touched":"yes"}}}`)
				}
			},
			onCall: "nothing: users report it", does: "Puts a record with the next event of its website. No event tells of the loss.", left: "set Resync, or touch the websites",
		},
		{
			name: "twice", title: "The external service acts twice", quiet: 20,
			do: func(d *day) {
				d.service.answerBy(func(*http.Request) *answer { return &answer{twice: true} })
				all(d, "2")
				d.await(15*time.Second, func() error { return d.right(nil) })
				d.remove("red", "docs")
				d.await(15*time.Second, func() error { return d.gone("red", "docs") })
				d.create("red", "docs")
				d.await(15*time.Second, func() error { return d.right(nil) })
				d.service.answerBy(nil)
			},
			onCall: "nothing", does: "Names a record by the website's uid, so a second action changes nothing.",
		},
		{
			name: "lost", title: "The external service acts, and its responses are lost for 30 s", bound: 45 * time.Second, quiet: 100, may: []string{"ControllerErrorBudgetBurnFast"},
			do: func(d *day) {
				d.service.answerBy(func(*http.Request) *answer { return &answer{lost: true} })
				all(d, "2")
				d.remove("red", "docs")
				d.create("blue", "new")
				time.Sleep(30*time.Second - time.Since(d.begin))
				calls(d, 100)
				d.service.answerBy(nil)
			},
			says:   [][]string{{"Reconcile failed", "no response"}},
			onCall: "`Reconcile failed`", does: "Calls again until a response comes; a 404 of a deletion is success.",
		},
	}
}

// down makes the machine of the service refuse connections, until up is called.
func (s *service) down(t testing.TB) (up func()) {
	t.Helper()
	addr := s.http.Listener.Addr().String()
	s.http.CloseClientConnections()
	s.http.Close()
	return func() {
		t.Helper()
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		s.http = &httptest.Server{Listener: l, Config: &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}}
		s.http.Start()
	}
}
