package fence

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/leader"
)

const stampKey = leader.TermAnnotation

// A Fence describes the policy of one Lease. The package comment has what it refuses.
//
// Two Fences for two Leases may cover the same resources if they have different Users, which
// stamp different objects. A stored stamp that is more than 16 terms ahead of the Lease was forged before
// the fence was in force, and does not count. To remove a wrong stamp, act as one of Users,
// without a term.
//
// While the Lease is absent, all writes pass, also late writes of earlier leaders, unless
// ParameterNotFoundAction is Deny. Deny has a price: the API server looks up the Lease
// before it checks the user, so all writes, deletions and connections of Resources, by all
// users in the whole cluster, are refused until a leader has created the Lease. Use it for
// resources that only the controller writes.
//
// With Allow and with Deny, an API server that has just started refuses all writes to
// Resources until it has read the Leases.
//
// Update a Fence in place. If no binding has a Lease as its parameter, kube-apiserver stops
// watching Leases for its policies until it restarts. If a deleted Fence is then created
// again, it compares with the Lease as it was at the deletion: writes of the leaders since
// then pass, and if the Lease was created again, writes of all leaders are refused
// (Kubernetes issue 130887). manifests/keep-leases.yaml is a binding that refuses no write
// and prevents this.
//
// The folder manifests also has an example, with the RBAC that GuardAs needs.
type Fence struct {
	// Name is the name of the policy and of its binding. Required.
	Name string
	// LeaseNamespace and LeaseName are the Namespace and the Name of the Elector.
	// Required.
	LeaseNamespace, LeaseName string
	// Users are the user names of the replicas. The name of a ServiceAccount is
	// system:serviceaccount:<namespace>:<name>. Any other name with that prefix is an error,
	// because no ServiceAccount has it and the fence would cover nobody. Required.
	Users []string
	// Resources are the resources that the fence covers, in all versions and
	// namespaces, with their subresources; Group "" is the core group. Pods includes
	// Bindings. The API server exempts reviews and admission policies from all policies, so
	// they are an error. A resource of an aggregated API server is covered if that server
	// evaluates the policies. Required.
	Resources []schema.GroupResource
	// ParameterNotFoundAction decides about writes to Resources while the Lease is
	// absent: Allow, or Deny, which refuses all of them. Empty means Allow.
	ParameterNotFoundAction admissionregistrationv1.ParameterNotFoundActionType
}

// Policy renders the fence as two objects with apiVersion and kind, which can be
// applied or printed to a manifest. An error names the field that is not valid. An API
// server acts on a new policy after some seconds, and emits no event for that.
func (f Fence) Policy() (*admissionregistrationv1.ValidatingAdmissionPolicy, *admissionregistrationv1.ValidatingAdmissionPolicyBinding, error) {
	if err := f.validate(); err != nil {
		return nil, nil, err
	}
	var rules []admissionregistrationv1.NamedRuleWithOperations
	for _, r := range f.Resources {
		resources := []string{r.Resource, r.Resource + "/*"}
		if r == (schema.GroupResource{Resource: "pods"}) {
			resources = append(resources, "bindings") // an earlier name of pods/binding
		}
		rules = append(rules, admissionregistrationv1.NamedRuleWithOperations{
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
				Rule: admissionregistrationv1.Rule{
					APIGroups:   []string{r.Group},
					APIVersions: []string{"*"},
					Resources:   resources,
				},
			},
		})
	}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: f.Name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    ptr.To(admissionregistrationv1.Fail),
			ParamKind:        &admissionregistrationv1.ParamKind{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: rules},
			MatchConditions: []admissionregistrationv1.MatchCondition{
				{Name: "term", Expression: f.ofUser() + " ? (" + fenceImpersonated + " || " + fenceStamped("object") + " && (!has(request.subResource) || request.subResource == ''))" +
					" : object != null && (" + fenceStamp("object") + " != " + fenceStamp("oldObject") + " || " + fenceBinds + ")"},
			},
			Variables:   f.variables(),
			Validations: f.validations(),
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: f.Name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: f.Name,
			ParamRef: &admissionregistrationv1.ParamRef{
				Namespace:               f.LeaseNamespace,
				Name:                    f.LeaseName,
				ParameterNotFoundAction: ptr.To(cmp.Or(f.ParameterNotFoundAction, admissionregistrationv1.AllowAction)),
			},
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	return policy, binding, nil
}

const (
	// fenceForm is the form of a stamp, and fenceSize its longest length.
	fenceForm = `'^[^/]+/(0|[1-9][0-9]{0,9})$'`
	fenceSize = 64
	// fenceImpersonated is true if the user carries the term.
	fenceImpersonated = `has(request.userInfo.extra) && '` + stampKey + `' in request.userInfo.extra`
	// fenceBinds is true if the write replaces the annotation of a Pod, whatever it is: the API
	// server copies the annotations of a Binding to the Pod, and shows the policy only the Binding.
	fenceBinds = `request.kind.group == '' && request.kind.kind == 'Binding' && has(object.metadata.annotations) && '` + stampKey + `' in object.metadata.annotations`
	// fenceAhead is the number of terms by which a stored stamp may be ahead of the API
	// server's view of the Lease. A stamp that is farther ahead was not written by a
	// leader.
	fenceAhead = 16
)

// fenceStamped is true if the object exists and has a stamp.
func fenceStamped(object string) string {
	return fmt.Sprintf("%[1]s != null && has(%[1]s.metadata) && has(%[1]s.metadata.annotations) && '%[2]s' in %[1]s.metadata.annotations", object, stampKey)
}

// fenceStamp is the stamp of the object, or empty. It cannot fail.
func fenceStamp(object string) string {
	return fmt.Sprintf("(%s ? %s.metadata.annotations['%s'] : '')", fenceStamped(object), object, stampKey)
}

// ofUser is true if the write is one of Users.
func (f Fence) ofUser() string {
	var users []string
	for _, user := range f.Users {
		users = append(users, strconv.QuoteToASCII(user)) // CEL has Go's escapes of valid UTF-8
	}
	return "request.userInfo.username in [" + strings.Join(users, ", ") + "]"
}

// variables parse the terms: the write's, the stored object's if both are of one Lease,
// and the Lease's. A malformed term has the number -1.
func (f Fence) variables() []admissionregistrationv1.Variable {
	return []admissionregistrationv1.Variable{
		{Name: "ofUser", Expression: f.ofUser()},
		{Name: "impersonated", Expression: fenceImpersonated},
		{Name: "stamp", Expression: fenceStamp("object")},
		{Name: "stored", Expression: fenceStamp("oldObject")},
		{Name: "binds", Expression: "object != null && " + fenceBinds},
		{Name: "term", Expression: fmt.Sprintf(
			`variables.impersonated ? (size(request.userInfo.extra['%[1]s']) == 1 ? request.userInfo.extra['%[1]s'][0] : '') : variables.stamp`, stampKey)},
		{Name: "valid", Expression: fenceValid("variables.term")},
		{Name: "lease", Expression: `variables.valid ? variables.term.split('/')[0] : ''`},
		{Name: "number", Expression: `variables.valid ? int(variables.term.split('/')[1]) : -1`},
		{Name: "current", Expression: `has(params.spec) && has(params.spec.leaseTransitions) ? params.spec.leaseTransitions : 0`},
		{Name: "held", Expression: `has(params.spec) && has(params.spec.holderIdentity) && params.spec.holderIdentity != ''`},
		{Name: "storedNumber", Expression: fenceValid("variables.stored") + fmt.Sprintf(` && variables.stored.split('/')[0] == variables.lease && int(variables.stored.split('/')[1]) <= variables.current + %d`, fenceAhead) +
			` ? int(variables.stored.split('/')[1]) : -1`},
		// Without GuardAs, an unchanged stamp of another Lease is no term of the write.
		{Name: "carriesTerm", Expression: `variables.ofUser && (variables.impersonated || variables.stamp != variables.stored || variables.lease == params.metadata.uid)`},
	}
}

// fenceValid is true if the text has the form of a stamp.
func fenceValid(text string) string {
	return fmt.Sprintf("size(%[1]s) <= %[2]d && %[1]s.matches(%[3]s)", text, fenceSize, fenceForm)
}

func (f Fence) validations() []admissionregistrationv1.Validation {
	return []admissionregistrationv1.Validation{
		{
			Expression: `variables.ofUser || !variables.stamp.startsWith(params.metadata.uid + '/') && !variables.stored.startsWith(params.metadata.uid + '/') && !variables.binds`,
			Reason:     ptr.To(metav1.StatusReasonForbidden),
			Message: fmt.Sprintf("annotation %s is the term of Lease %s/%s: leave it unchanged: only the users of the fence may set, change or remove it",
				stampKey, f.LeaseNamespace, f.LeaseName),
		},
		{
			Expression:        `!variables.carriesTerm || variables.valid`,
			Reason:            ptr.To(metav1.StatusReasonInvalid),
			Message:           "the leader's term must be <Lease UID>/<number>",
			MessageExpression: `"the leader's term is '" + variables.term + "': it must be <Lease UID>/<number>"`,
		},
		{
			Expression: `!variables.carriesTerm || variables.lease == params.metadata.uid && (variables.number > variables.current || variables.number == variables.current && variables.held)`,
			Reason:     ptr.To(metav1.StatusReasonForbidden),
			Message:    "the write is not of the present leader's term",
			MessageExpression: fmt.Sprintf(`"the write is of term " + variables.term + ", but Lease %s/%s is " + (variables.held ? "held" : "released")`+
				` + " in term " + params.metadata.uid + "/" + string(variables.current) + ": it comes from an earlier leader, or it is a patch that kept an earlier stamp"`, f.LeaseNamespace, f.LeaseName),
		},
		{
			Expression: `!variables.carriesTerm || variables.storedNumber <= variables.number`,
			Reason:     ptr.To(metav1.StatusReasonForbidden),
			Message:    "the stored object is of a later term than the write",
			MessageExpression: `"the write is of term " + variables.term + ", but the stored object has the stamp of a later one, " + variables.stored` +
				` + ": the write comes from an earlier leader; if the stamp is wrong, remove it as a user of the fence: annotation ` + stampKey + `"`,
		},
	}
}

func (f Fence) validate() error {
	switch {
	case len(validation.IsDNS1123Subdomain(f.Name)) > 0:
		return fmt.Errorf("fence: Name is %q: set it to a name for the policy, e.g. the Lease's: lower case, digits, '-' and '.'", f.Name)
	case len(validation.IsDNS1123Label(f.LeaseNamespace)) > 0:
		return fmt.Errorf("fence: LeaseNamespace is %q: set it to the Namespace of the Elector", f.LeaseNamespace)
	case len(validation.IsDNS1123Subdomain(f.LeaseName)) > 0:
		return fmt.Errorf("fence: LeaseName is %q: set it to the Name of the Elector", f.LeaseName)
	case len(f.Users) == 0:
		return fmt.Errorf("fence: Users is empty: set it to the user names of the replicas, e.g. system:serviceaccount:%s:<name>", f.LeaseNamespace)
	case len(f.Resources) == 0:
		return fmt.Errorf("fence: Resources is empty: set it to the resources that the leader writes")
	}
	switch f.ParameterNotFoundAction {
	case "", admissionregistrationv1.AllowAction, admissionregistrationv1.DenyAction:
	default:
		return fmt.Errorf("fence: ParameterNotFoundAction is %q: set it to Allow or Deny", f.ParameterNotFoundAction)
	}
	for i, user := range f.Users {
		account, isAccount := strings.CutPrefix(user, "system:serviceaccount:")
		ns, name, whole := strings.Cut(account, ":")
		if user == "" || isAccount && (!whole || len(validation.IsDNS1123Label(ns)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0) {
			return fmt.Errorf("fence: Users[%d] is %q: set it to a user name; a ServiceAccount's is system:serviceaccount:<namespace>:<name>", i, user)
		}
	}
	for i, r := range f.Resources {
		if len(validation.IsDNS1123Subdomain(r.Resource)) > 0 || r.Group != "" && len(validation.IsDNS1123Subdomain(r.Group)) > 0 {
			return fmt.Errorf("fence: Resources[%d] is %q of group %q: set it to one resource by its plural name, without version, subresource or wildcard", i, r.Resource, r.Group)
		}
		if fenceExempt(r) {
			return fmt.Errorf("fence: Resources[%d] is %q of group %q: leave it out: the API server exempts it from admission policies", i, r.Resource, r.Group)
		}
	}
	return nil
}

// fenceExempt reports whether the API server evaluates no policy for the resource.
func fenceExempt(r schema.GroupResource) bool {
	switch r.Group {
	case admissionregistrationv1.GroupName:
		return strings.HasPrefix(r.Resource, "validatingadmissionpolic") || strings.HasPrefix(r.Resource, "mutatingadmissionpolic")
	case "authentication.k8s.io", "authorization.k8s.io":
		return strings.HasSuffix(r.Resource, "reviews")
	}
	return false
}
