package main

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/examples/tenant/billing"
)

// A wanted is an object that a user has created.
type wanted struct {
	name, uid string
	spec      map[string]any
}

// A snapshot has the state of the API server and of the services.
type snapshot struct {
	objects  map[string]map[string]*unstructured.Unstructured // by resource, and namespace/name or name
	records  map[string]string                                // of the DNS service, by UID
	accounts []billing.Account
}

const (
	websites = "websites"
	tenants  = "tenants"
)

// resources returns the resources that a check lists.
func resources() map[string]schema.GroupVersionResource {
	return map[string]schema.GroupVersionResource{
		websites:          {Group: "web.example.com", Version: "v1", Resource: websites},
		tenants:           {Group: "tenancy.example.com", Version: "v1alpha1", Resource: tenants},
		"configmaps":      {Version: "v1", Resource: "configmaps"},
		"services":        {Version: "v1", Resource: "services"},
		"deployments":     {Group: "apps", Version: "v1", Resource: "deployments"},
		"namespaces":      {Version: "v1", Resource: "namespaces"},
		"resourcequotas":  {Version: "v1", Resource: "resourcequotas"},
		"rolebindings":    {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
		"networkpolicies": {Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	}
}

// look lists all objects. Each list is of the latest state.
func look(ctx context.Context, client dynamic.Interface) (map[string]map[string]*unstructured.Unstructured, error) {
	all := map[string]map[string]*unstructured.Unstructured{}
	for name, resource := range resources() {
		list, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", name, err)
		}
		all[name] = map[string]*unstructured.Unstructured{}
		for i := range list.Items {
			obj := &list.Items[i]
			all[name][strings.TrimPrefix(obj.GetNamespace()+"/"+obj.GetName(), "/")] = obj
		}
	}
	return all, nil
}

// judge returns the differences between what users want and what there is, as the READMEs
// of the examples promise it: each begins with the object's resource and name.
func judge(sites, teams []wanted, s snapshot) []string {
	var found []string
	problem := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	known := map[string]bool{} // UIDs that own children
	records, accounts := maps.Clone(s.records), map[string]billing.Account{}
	for _, a := range s.accounts {
		if _, twice := accounts[a.Key]; twice {
			problem("accounts %s: two for the tenant %s", a.Key, a.Tenant)
		}
		accounts[a.Key] = a
	}

	present := map[string]map[string]bool{websites: {}, tenants: {}}
	main := func(resource, key string, w wanted) *unstructured.Unstructured {
		present[resource][key] = true
		known[w.uid] = true
		obj := s.objects[resource][key]
		switch {
		case obj == nil:
			problem("%s %s: is gone", resource, key)
			return nil
		case string(obj.GetUID()) != w.uid:
			problem("%s %s: has the UID %s, want %s", resource, key, obj.GetUID(), w.uid)
			return nil
		case obj.GetDeletionTimestamp() != nil:
			problem("%s %s: is being deleted", resource, key)
		case len(obj.GetFinalizers()) != 1:
			problem("%s %s: has the finalizers %q, want one", resource, key, obj.GetFinalizers())
		}
		if spec := at(obj, "spec"); !reflect.DeepEqual(spec, any(w.spec)) {
			problem("%s %s: has the spec %v, want %v", resource, key, spec, w.spec)
		}
		if n := at(obj, "status", "observedGeneration"); n != obj.GetGeneration() {
			problem("%s %s: the status is of generation %v, want %d", resource, key, n, obj.GetGeneration())
		}
		return obj
	}
	child := func(resource, key, parent string, uid string, want map[string]any) {
		obj := s.objects[resource][key]
		if obj == nil {
			problem("%s: %s %s is missing", parent, resource, key)
			return
		}
		if owner := metav1.GetControllerOf(obj); owner == nil || string(owner.UID) != uid || obj.GetDeletionTimestamp() != nil {
			problem("%s: %s %s is not owned by it, or is being deleted: %v %v", parent, resource, key, owner, obj.GetDeletionTimestamp())
		}
		for path, value := range want {
			if got := at(obj, strings.Split(path, ".")...); !reflect.DeepEqual(got, value) {
				problem("%s: %s %s has %s %v, want %v", parent, resource, key, path, got, value)
			}
		}
	}

	for _, w := range sites {
		key := space + "/" + w.name
		obj := main(websites, key, w)
		if obj == nil {
			continue
		}
		parent := websites + " " + key
		// The cluster has no controller of Deployments, so no replica gets ready.
		condition(problem, obj, parent, "Ready", "False", "Progressing", fmt.Sprintf("0 of %v replicas are ready", w.spec["replicas"]))
		child("configmaps", key, parent, w.uid, map[string]any{"data": map[string]any{"HOST": w.spec["host"]}})
		child("services", key, parent, w.uid, map[string]any{"spec.selector": map[string]any{"app.kubernetes.io/name": "website", "app.kubernetes.io/instance": w.name}})
		child("deployments", key, parent, w.uid, map[string]any{"spec.replicas": w.spec["replicas"]})
		if d := s.objects["deployments"][key]; d != nil {
			containers, _ := at(d, "spec", "template", "spec", "containers").([]any)
			if len(containers) != 1 || containers[0].(map[string]any)["image"] != w.spec["image"] {
				problem("%s: the Deployment has the containers %v, want the image %v", parent, containers, w.spec["image"])
			}
		}
		if records[w.uid] != w.spec["host"] {
			problem("%s: the DNS record is %q, want %q", parent, records[w.uid], w.spec["host"])
		}
		delete(records, w.uid)
	}
	for uid, host := range records {
		problem("records %s: the DNS record of %s belongs to no website", uid, host)
	}

	for _, w := range teams {
		obj := main(tenants, w.name, w)
		if obj == nil {
			continue
		}
		parent := tenants + " " + w.name
		for _, name := range []string{"Ready", "NamespaceReady", "AccountOpen"} {
			condition(problem, obj, parent, name, "True", "", "")
		}
		child("namespaces", w.name, parent, w.uid, map[string]any{"status.phase": "Active"})
		inside := func(resource string, wanted bool, want map[string]any) {
			key := w.name + "/tenant"
			switch {
			case wanted:
				child(resource, key, parent, w.uid, want)
			case s.objects[resource][key] != nil:
				problem("%s: %s %s exists, want none", parent, resource, key)
			}
		}
		var subjects []any
		members, _ := w.spec["members"].([]any)
		for _, m := range members {
			subjects = append(subjects, map[string]any{"kind": "User", "name": m, "apiGroup": "rbac.authorization.k8s.io"})
		}
		inside("resourcequotas", w.spec["quota"] != nil, map[string]any{"spec.hard": w.spec["quota"]})
		inside("rolebindings", len(members) > 0, map[string]any{"subjects": subjects, "roleRef.name": "edit"})
		inside("networkpolicies", w.spec["networkIsolation"] == true, nil)
		account, ok := accounts[w.uid]
		if plan := w.spec["account"].(map[string]any)["plan"]; !ok || account.Tenant != w.name || account.Plan != plan {
			problem("%s: the account is %+v, want one with the plan %v", parent, account, plan)
		} else if id := at(obj, "status", "accountID"); id != account.ID {
			problem("%s: the status has the account %v, want %s", parent, id, account.ID)
		}
		delete(accounts, w.uid)
	}
	for uid, a := range accounts {
		problem("accounts %s: the account of %s belongs to no tenant", uid, a.Tenant)
	}

	for _, resource := range slices.Sorted(maps.Keys(s.objects)) {
		for _, key := range slices.Sorted(maps.Keys(s.objects[resource])) {
			obj := s.objects[resource][key]
			if keys := present[resource]; keys != nil {
				if !keys[key] {
					problem("%s %s: exists, although its user deleted it: deletion %v, finalizers %q", resource, key, obj.GetDeletionTimestamp(), obj.GetFinalizers())
				}
				continue
			}
			if owner := metav1.GetControllerOf(obj); owner != nil && (owner.Kind == "Website" || owner.Kind == "Tenant") && !known[string(owner.UID)] {
				problem("%s %s: its owner %s %s is gone", resource, key, owner.Kind, owner.Name)
			}
		}
	}
	slices.Sort(found)
	return found
}

// condition checks a condition of the present generation. An empty reason means any, with
// any message.
func condition(problem func(string, ...any), obj *unstructured.Unstructured, parent, name, status, reason, message string) {
	conditions, _ := at(obj, "status", "conditions").([]any)
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		if c["type"] != name {
			continue
		}
		if c["status"] != status || c["observedGeneration"] != obj.GetGeneration() || reason != "" && (c["reason"] != reason || c["message"] != message) {
			problem("%s: the condition is %v, want %s of generation %d: %s %s", parent, c, status, obj.GetGeneration(), reason, message)
		}
		return
	}
	problem("%s: has no condition %s", parent, name)
}

// at returns a field of an object, nil if it is absent.
func at(obj *unstructured.Unstructured, path ...string) any {
	value, _, err := unstructured.NestedFieldNoCopy(obj.Object, path...)
	if err != nil {
		return nil
	}
	return value
}
