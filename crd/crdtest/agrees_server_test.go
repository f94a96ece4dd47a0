package crdtest_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var (
	agreeRequests = flag.Int("requests", 450, "how many random requests TestServerAgrees sends to the Fake and to the API server")
	agreeSeed     = flag.Uint64("seed", 0, "the seed of TestServerAgrees; 0 means a random one")
)

// The Fake responds to random requests as the API server does: with the same errors, the
// same objects and the same managed fields. The seed that the test logs repeats it.
//
// Proves CR5.
func TestServerAgrees(t *testing.T) {
	testserver.Since(t, "1.37", "the Fake responds as Kubernetes 1.37 does")
	testserver.InstallCRD(t, gadgets())
	kind := schema.GroupVersionKind{Group: "crd.example.com", Version: "v1", Kind: "Gadget"}
	config := testserver.Config(t)
	server, err := crd.New[*gadget](config, kind, "gadgets")
	if err != nil {
		t.Fatal(err)
	}
	ns, seed := testserver.Namespace(t), cmp.Or(*agreeSeed, rand.Uint64())
	t.Logf("seed %d", seed)
	owners, counts := newOwners(t, ns), map[string]int{}
	const steps = 30
	for run := range (*agreeRequests + steps - 1) / steps {
		fake, err := crdtest.NewFake[*gadget](kind, "gadgets")
		if err != nil {
			t.Fatal(err)
		}
		names := []string{fmt.Sprint("a", run), fmt.Sprint("b", run)}
		r := rand.New(rand.NewPCG(seed, uint64(run)))
		sides := [2]*side{newSide(server.Namespace(ns), owners), newSide(fake.Namespace(ns), owners)}
		if difference := disagree(t.Context(), sides, counts, r, names, steps); difference != "" {
			t.Errorf("run %d: %s", run, difference)
		}
	}
	t.Logf("responses in agreement: %v", counts)
}

// newOwners makes the owners of the owner references.
func newOwners(t *testing.T, ns string) *strings.Replacer {
	configMaps := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(ns)
	var uids []string
	for _, name := range []string{"o", "p"} {
		owner, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uids = append(uids, "owner-"+name, string(owner.UID))
	}
	return strings.NewReplacer(uids...)
}

func newSide(client *crd.Client[*gadget], owners *strings.Replacer) *side {
	return &side{client: client, owners: owners, seen: map[string][]*gadget{}, ids: map[string]map[string]string{}}
}

// disagree sends random requests to the API server and to the Fake until they differ, and
// returns the last requests for the object and the difference. It counts the responses.
func disagree(ctx context.Context, sides [2]*side, counts map[string]int, r *rand.Rand, names []string, steps int) string {
	var history []string
	for range steps {
		q := newRequest(r, names)
		want, got := sides[0].outcome(ctx, q), sides[1].outcome(ctx, q)
		short, _, _ := strings.Cut(want, "\n")
		history = append(history, fmt.Sprintf("%s: %.500s", q, short))
		if want != got {
			own := slices.DeleteFunc(history, func(line string) bool { return !strings.Contains(line, q.name) })
			return fmt.Sprintf("%s\nserver: %s\nfake:   %s", strings.Join(own[max(0, len(own)-8):], "\n"), want, got)
		}
		class, _, _ := strings.Cut(short, ":")
		counts[q.verb+" "+strings.Replace(class, `{"metadata"`, "an object", 1)]++
	}
	return ""
}

// outcome sends the request, and returns the response and the stored object as text.
func (s *side) outcome(ctx context.Context, q request) string {
	obj, err := s.do(ctx, q)
	text := s.text(q.name, obj, err)
	if q.verb == "get" {
		return text
	}
	stored, err := s.client.Get(ctx, q.name, metav1.GetOptions{})
	if err == nil && (len(s.seen[q.name]) == 0 || s.seen[q.name][len(s.seen[q.name])-1].ResourceVersion != stored.ResourceVersion) {
		s.seen[q.name] = append(s.seen[q.name], stored)
	}
	return text + "\n        stored " + s.text(q.name, stored, err)
}

// text returns the class of the error, or the object without that which differs between
// two servers.
func (s *side) text(name string, obj *gadget, err error) string {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		return fmt.Sprintf("%d %s", status.Status().Code, status.Status().Reason)
	case err != nil:
		return "other error: " + err.Error()
	case obj == nil:
		return "no error"
	}
	obj = obj.DeepCopyObject().(*gadget)
	obj.UID = types.UID(s.id(name, "uid", string(obj.UID)))
	obj.ResourceVersion = s.id(name, "version", obj.ResourceVersion)
	if random, ok := strings.CutPrefix(obj.Name, obj.GenerateName); ok && obj.Name != name && len(random) == 5 {
		obj.Name = "generated"
	}
	for _, at := range []*metav1.Time{&obj.CreationTimestamp, obj.DeletionTimestamp} {
		if at != nil && time.Since(at.Time) < time.Hour {
			*at = metav1.Unix(0, 0)
		}
	}
	for i := range obj.ManagedFields {
		obj.ManagedFields[i].Time = nil
	}
	slices.SortFunc(obj.ManagedFields, func(a, b metav1.ManagedFieldsEntry) int {
		return strings.Compare(a.Manager+string(a.Operation)+a.Subresource, b.Manager+string(b.Operation)+b.Subresource)
	})
	data, err := json.Marshal(obj)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// id numbers the uids and versions of an object in the order of their appearance.
func (s *side) id(name, prefix, value string) string {
	if value == "" {
		return "none"
	}
	ids := s.ids[name]
	if ids == nil {
		ids = map[string]string{}
		s.ids[name] = ids
	}
	if ids[prefix+value] == "" {
		ids[prefix+value] = prefix + strconv.Itoa(len(ids))
	}
	return ids[prefix+value]
}
