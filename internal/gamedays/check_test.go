package gamedays

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// A checker reads JSON from the API server, and knows nothing of the library.
type checker struct {
	client  rest.Interface
	records func() map[string]string // of the DNS service: hosts by uid
}

// The types have what the checker looks at.
type (
	metadata struct {
		Name, Namespace, UID, DeletionTimestamp string
		Generation                              int64
		Labels, Annotations                     map[string]string
		Finalizers                              []string
		OwnerReferences                         []struct {
			UID, Kind  string
			Controller bool
		}
	}
	object struct {
		Metadata metadata
		Data     map[string]string
		Spec     struct {
			Image, Host string
			Replicas    int32
			Template    struct {
				Spec struct {
					Containers []struct{ Image string }
				}
			}
			Ports []struct{ Port int32 }
		}
		Status struct {
			ObservedGeneration int64
			ReadyReplicas      int32
			Conditions         []struct {
				Type, Status, Reason, Message string
				ObservedGeneration            int64
			}
		}
	}
)

func (c *checker) list(ctx context.Context, path string) (items []object, err error) {
	data, err := c.client.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var list struct{ Items []object }
	err = json.Unmarshal(data, &list)
	return list.Items, err
}

const sitesPath = "/apis/web.example.com/v1/websites"

// sites returns the websites. Without their definition there are none.
func (c *checker) sites(ctx context.Context) ([]object, error) {
	sites, err := c.list(ctx, sitesPath)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return sites, err
}

// right returns nil if each website has its children, its record and its status, and nothing is left of
// others. The websites for which skip returns true may fail.
func (c *checker) right(ctx context.Context, skip func(object) bool) error {
	sites, err := c.sites(ctx)
	if err != nil {
		return err
	}
	children := map[string]map[string]object{} // by kind, and namespace and name
	byKind := map[string]string{"configmap": "/api/v1/configmaps", "service": "/api/v1/services", "deployment": "/apis/apps/v1/deployments"}
	for kind, path := range byKind {
		items, err := c.list(ctx, path)
		if err != nil {
			return err
		}
		children[kind] = map[string]object{}
		for _, o := range items {
			if o.Metadata.Labels["app.kubernetes.io/name"] == "website" {
				children[kind][o.Metadata.Namespace+"/"+o.Metadata.Name] = o
			}
		}
	}
	records := c.records()
	var errs []error
	uids := map[string]bool{}
	for _, site := range sites {
		m := site.Metadata
		uids[m.UID] = true
		if skip != nil && skip(site) {
			continue
		}
		if err := c.one(site, children, records[m.UID]); err != nil {
			errs = append(errs, fmt.Errorf("website %s/%s: %w", m.Namespace, m.Name, err))
		}
	}
	for kind, all := range children {
		for key, o := range all {
			for _, owner := range o.Metadata.OwnerReferences {
				if !uids[owner.UID] {
					errs = append(errs, fmt.Errorf("%s %s is left of a website that is gone", kind, key))
				}
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(records)) {
		if !uids[uid] {
			errs = append(errs, fmt.Errorf("the record %s is left of a website that is gone", records[uid]))
		}
	}
	return errors.Join(errs...)
}

func (c *checker) one(site object, children map[string]map[string]object, record string) error {
	m, key := site.Metadata, site.Metadata.Namespace+"/"+site.Metadata.Name
	if m.DeletionTimestamp != "" {
		return errors.New("it is still being deleted")
	}
	var errs []error
	for kind, all := range children {
		child, ok := all[key]
		owner := ""
		for _, o := range child.Metadata.OwnerReferences {
			if o.Controller {
				owner = o.UID
			}
		}
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("its %s is missing", kind))
			continue
		case owner != m.UID:
			errs = append(errs, fmt.Errorf("its %s belongs to %q, want %q", kind, owner, m.UID))
		}
		switch kind {
		case "configmap":
			if child.Data["HOST"] != site.Spec.Host {
				errs = append(errs, fmt.Errorf("its configmap has %v, want %s", child.Data, site.Spec.Host))
			}
		case "deployment":
			if containers := child.Spec.Template.Spec.Containers; child.Spec.Replicas != site.Spec.Replicas || len(containers) == 0 || containers[0].Image != site.Spec.Image {
				errs = append(errs, fmt.Errorf("its deployment is %+v, want that of %+v", child.Spec, site.Spec))
			}
		case "service":
			if len(child.Spec.Ports) != 1 || child.Spec.Ports[0].Port != 80 {
				errs = append(errs, fmt.Errorf("its service is %+v", child.Spec))
			}
		}
	}
	if record != site.Spec.Host {
		errs = append(errs, fmt.Errorf("its record is %q, want %q", record, site.Spec.Host))
	}
	ready := "missing"
	for _, cond := range site.Status.Conditions {
		if cond.Type == "Ready" && cond.ObservedGeneration == m.Generation {
			ready = cond.Status + ": " + cond.Reason + ": " + cond.Message
			if cond.Status == string(metav1.ConditionTrue) {
				ready = ""
			}
		}
	}
	if ready != "" {
		errs = append(errs, fmt.Errorf("its condition Ready of generation %d is %s", m.Generation, ready))
	}
	if site.Status.ObservedGeneration != m.Generation || site.Status.ReadyReplicas != site.Spec.Replicas {
		errs = append(errs, fmt.Errorf("its status is %+v, want that of generation %d", site.Status, m.Generation))
	}
	return errors.Join(errs...)
}

// bundles returns nil if each bundle of the namespaces has exactly its members, and no others have members.
func (c *checker) bundles(ctx context.Context, namespaces []string) error {
	data, err := c.client.Get().AbsPath("/api/v1/secrets").SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return err
	}
	var secrets struct {
		Items []struct {
			Metadata metadata
			Data     map[string][]byte
		}
	}
	if err := json.Unmarshal(data, &secrets); err != nil {
		return err
	}
	want := map[string]string{} // by kind, namespace and name: the bundle
	for _, s := range secrets.Items {
		if s.Metadata.Labels["web.example.com/bundle"] == "" || !slices.Contains(namespaces, s.Metadata.Namespace) {
			continue
		}
		if s.Metadata.DeletionTimestamp != "" {
			return fmt.Errorf("bundle %s is still being deleted", s.Metadata.Name)
		}
		for key := range s.Data {
			if member, ok := strings.CutSuffix(key, ".yaml"); ok { // a ConfigMap
				want[s.Metadata.Namespace+"/"+s.Metadata.Name+"-"+member] = s.Metadata.Name
			}
		}
	}
	members, err := c.list(ctx, "/api/v1/configmaps")
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range members {
		of := m.Metadata.Labels["web.example.com/bundle"]
		key := m.Metadata.Namespace + "/" + m.Metadata.Name
		if of == "" || !slices.Contains(namespaces, m.Metadata.Namespace) {
			continue
		}
		if want[key] != of {
			errs = append(errs, fmt.Errorf("member %s of bundle %s is left", key, of))
		}
		delete(want, key)
	}
	for key, of := range want {
		errs = append(errs, fmt.Errorf("member %s of bundle %s is missing", key, of))
	}
	return errors.Join(errs...)
}
