package leader

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// stampKey is the annotation, and the attribute of the user, that tells in which
// term a write was made: "<Lease UID>/<number>".
const stampKey = "controllerkit.github.io/leader-term"

func (t Term) stamp() string { return string(t.LeaseUID) + "/" + strconv.FormatInt(t.Number, 10) }

// Stamp writes the term into the annotation controllerkit.github.io/leader-term
// of obj, which is about to be created or updated, for a [Fence] to see. It gives
// obj a new map of annotations, so a shallow copy of an object that others share
// will do; obj itself must be the caller's. A zero Term makes a stamp that a
// Fence refuses.
func (t Term) Stamp(obj metav1.Object) {
	annotations := maps.Clone(obj.GetAnnotations())
	if annotations == nil {
		annotations = t.Annotations()
	}
	annotations[stampKey] = t.stamp()
	obj.SetAnnotations(annotations)
}

// Annotations is the stamp of [Term.Stamp] for server-side apply:
//
//	applyconfigurationscorev1.ConfigMap(name, namespace).WithAnnotations(term.Annotations())
//
// The map is the caller's.
func (t Term) Annotations() map[string]string { return map[string]string{stampKey: t.stamp()} }

// A Fence makes the API server refuse writes of an earlier leader, whose request
// arrives late or whose process was paused after its last check. It is a
// ValidatingAdmissionPolicy that compares the term that a write carries with the
// Lease. Which writes it covers depends on how they carry it: by the stamp of
// [Term.Stamp] and [Term.Annotations], or by the client of [GuardAs]:
//
//	          create  update, patch  apply  status  delete
//	Stamp     yes     yes            yes    no      no
//	GuardAs   yes     yes            yes    yes     yes
//
// Status stands for all subresources. Custom resources drop the metadata of such a
// write, and a deletion has none, so without GuardAs these are left to [Guard] and
// [Term.Check]. With GuardAs the stamp is not needed; with both, what
// GuardAs says counts.
//
// A write of Users that carries a term is refused
//
//   - if the term is of another Lease, or of one with the same name that was
//     deleted since,
//   - if its number is lower than the Lease's, or is equal and the Lease was
//     released. One that is higher passes: its leader may be ahead of what the
//     API server knows,
//   - if the stored object has a stamp of the same Lease with a higher number. This
//     part reads what the write replaces, so it is exact, whatever the API server
//     knows of the Lease,
//   - if it is not a term.
//
// The last is an error of reason Invalid, the others are Forbidden; all say why.
// Writes of Users that carry no term pass. Beware of patches without a stamp where
// objects are stamped: what is judged is the object as it will be stored, and that
// has the stamp of whoever stamped it last. A patch of the next leader is refused
// until it stamps too. GuardAs is free of that. A stamp that was there before and is
// not of this Lease does not count.
//
// # Other users
//
// Writes of other users pass, deletions too, unless they set, change or remove a
// stamp of this Lease. So nobody can shut the leader out of an object by a forged
// stamp of a later term, and nobody can take away what makes the fence exact. A
// stored stamp that is more than 16 terms ahead of the Lease was forged before the
// Fence was in force, and does not count either.
//
// Two Fences may cover the same resources, each for its own Lease, as long as they
// do not stamp the same objects. A backup that is restored while its Lease still
// exists must leave the annotation out. So must a controller that copies annotations
// into another resource of the Fence, as Deployments do to ReplicaSets.
//
// These can open a Fence or close it, so guard their rights: those who may write the
// policy or its binding, those who may write or delete the Lease, and those who may
// act as one of Users. To remove a wrong stamp, act as one of Users, without a term.
//
// # What it is not
//
// The API server learns of a new leader by a watch. For the time this takes, some
// milliseconds, it lets pass what the leader before sends, except where the stored
// object tells. Every API server has a watch of its own. Likewise a leader whose
// Lease was just created anew may be refused for these milliseconds.
//
// While there is no Lease nothing is refused, unless ParameterNotFoundAction is
// Deny. Nobody leads then but the one whose Lease was deleted, until it finds out;
// a late write of one before it passes. Deny closes that gap, at a price: the API
// server looks for the Lease before it looks at the user, so nobody can write or
// delete any of Resources, in the whole cluster, until a leader has made the Lease.
// Take it for resources that only the controller writes. For the same reason an
// API server that has not yet read the Leases, right after its start, refuses all
// writes to Resources.
//
// It stops those who are late. It does not stop one of Users who forges a term.
//
// The folder manifests of this package has an example, with the RBAC that GuardAs
// needs.
type Fence struct {
	// Name names the policy and its binding. It is required.
	Name string
	// LeaseNamespace and LeaseName say which Lease: those of the Elector. They are
	// required.
	LeaseNamespace, LeaseName string
	// Users are the user names of the replicas. That of a ServiceAccount is
	// system:serviceaccount:<namespace>:<name>. At least one is required.
	Users []string
	// Resources are the resources that the fence covers, in all versions and
	// namespaces, with their subresources; Group "" is the core group. At least one
	// is required.
	Resources []schema.GroupResource
	// ParameterNotFoundAction says what becomes of writes to Resources while there
	// is no Lease: Allow, or Deny for those of everybody. "" means Allow.
	ParameterNotFoundAction admissionregistrationv1.ParameterNotFoundActionType
}

// Policy renders the fence, with apiVersion and kind, so that both can be applied
// as they are, or be printed to a manifest. An error names the field that is not
// valid. It takes some seconds until an API server acts on a policy
// that was applied, and there is no event for it.
func (f Fence) Policy() (*admissionregistrationv1.ValidatingAdmissionPolicy, *admissionregistrationv1.ValidatingAdmissionPolicyBinding, error) {
	if err := f.validate(); err != nil {
		return nil, nil, err
	}
	var rules []admissionregistrationv1.NamedRuleWithOperations
	for _, r := range f.Resources {
		rules = append(rules, admissionregistrationv1.NamedRuleWithOperations{
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{
					admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete,
				},
				Rule: admissionregistrationv1.Rule{
					APIGroups:   []string{r.Group},
					APIVersions: []string{"*"},
					Resources:   []string{r.Resource, r.Resource + "/*"},
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
				{Name: "term", Expression: f.ofUser() + " ? (" + fenceTold + " || " + fenceStamped("object") + " && (!has(request.subResource) || request.subResource == ''))" +
					" : object != null && " + fenceStamp("object") + " != " + fenceStamp("oldObject")},
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
	// fenceForm is the form of a stamp. What is longer than fenceSize is none.
	fenceForm = `'^[^/]+/(0|[1-9][0-9]{0,9})$'`
	fenceSize = 64
	// fenceTold: the user carries the term.
	fenceTold = `has(request.userInfo.extra) && '` + stampKey + `' in request.userInfo.extra`
	// fenceAhead is by how many terms a stored stamp may be ahead of what the API
	// server knows of the Lease. One that is farther ahead was not written by a leader.
	fenceAhead = 16
)

// fenceStamped: the object is there and has a stamp.
func fenceStamped(object string) string {
	return fmt.Sprintf("%[1]s != null && has(%[1]s.metadata) && has(%[1]s.metadata.annotations) && '%[2]s' in %[1]s.metadata.annotations", object, stampKey)
}

// fenceStamp is the stamp of the object, empty if it has none. It cannot fail.
func fenceStamp(object string) string {
	return fmt.Sprintf("(%s ? %s.metadata.annotations['%s'] : '')", fenceStamped(object), object, stampKey)
}

// ofUser: the write is one of Users.
func (f Fence) ofUser() string {
	var users []string
	for _, user := range f.Users {
		users = append(users, strconv.QuoteToASCII(user)) // CEL knows Go's escapes of valid UTF-8
	}
	return "request.userInfo.username in [" + strings.Join(users, ", ") + "]"
}

// variables take the terms apart: the one of the write, that of the stored object
// if both are of one Lease, and the Lease's. What is not a term has the number -1.
func (f Fence) variables() []admissionregistrationv1.Variable {
	return []admissionregistrationv1.Variable{
		{Name: "ofUser", Expression: f.ofUser()},
		{Name: "told", Expression: fenceTold},
		{Name: "stamp", Expression: fenceStamp("object")},
		{Name: "stored", Expression: fenceStamp("oldObject")},
		{Name: "term", Expression: fmt.Sprintf(
			`variables.told ? (size(request.userInfo.extra['%[1]s']) == 1 ? request.userInfo.extra['%[1]s'][0] : '') : variables.stamp`, stampKey)},
		{Name: "valid", Expression: fenceValid("variables.term")},
		{Name: "lease", Expression: `variables.valid ? variables.term.split('/')[0] : ''`},
		{Name: "number", Expression: `variables.valid ? int(variables.term.split('/')[1]) : -1`},
		{Name: "current", Expression: `has(params.spec) && has(params.spec.leaseTransitions) ? params.spec.leaseTransitions : 0`},
		{Name: "held", Expression: `has(params.spec) && has(params.spec.holderIdentity) && params.spec.holderIdentity != ''`},
		{Name: "storedNumber", Expression: fenceValid("variables.stored") + fmt.Sprintf(` && variables.stored.split('/')[0] == variables.lease && int(variables.stored.split('/')[1]) <= variables.current + %d`, fenceAhead) +
			` ? int(variables.stored.split('/')[1]) : -1`},
		// Not a stamp of something else that was there before, which says nothing of the write.
		{Name: "carried", Expression: `variables.ofUser && (variables.told || variables.stamp != variables.stored || variables.lease == params.metadata.uid)`},
	}
}

// fenceValid: the text has the form of a stamp.
func fenceValid(text string) string {
	return fmt.Sprintf("size(%[1]s) <= %[2]d && %[1]s.matches(%[3]s)", text, fenceSize, fenceForm)
}

func (f Fence) validations() []admissionregistrationv1.Validation {
	return []admissionregistrationv1.Validation{
		{
			Expression: `variables.ofUser || !variables.stamp.startsWith(params.metadata.uid + '/') && !variables.stored.startsWith(params.metadata.uid + '/')`,
			Reason:     ptr.To(metav1.StatusReasonForbidden),
			Message: fmt.Sprintf("the annotation %s is the term of Lease %s/%s: only the users of the fence may set, change or remove it: leave it as it is",
				stampKey, f.LeaseNamespace, f.LeaseName),
		},
		{
			Expression:        `!variables.carried || variables.valid`,
			Reason:            ptr.To(metav1.StatusReasonInvalid),
			Message:           "the leader's term must be <Lease UID>/<number>",
			MessageExpression: `"the leader's term is '" + variables.term + "': it must be <Lease UID>/<number>"`,
		},
		{
			Expression: `!variables.carried || variables.lease == params.metadata.uid && (variables.number > variables.current || variables.number == variables.current && variables.held)`,
			Reason:     ptr.To(metav1.StatusReasonForbidden),
			Message:    "the write is not of the term of the present leader",
			MessageExpression: fmt.Sprintf(`"the write is of term " + variables.term + ", but Lease %s/%s is " + (variables.held ? "held" : "released")`+
				` + " in term " + params.metadata.uid + "/" + string(variables.current) + ": it is of an earlier leader, or a patch that kept the stamp of one"`, f.LeaseNamespace, f.LeaseName),
		},
		{
			Expression: `!variables.carried || variables.storedNumber <= variables.number`,
			Reason:     ptr.To(metav1.StatusReasonForbidden),
			Message:    "the stored object is of a later term than the write",
			MessageExpression: `"the write is of term " + variables.term + ", but the stored object has the stamp of a later one, " + variables.stored` +
				` + ": the write is of an earlier leader; if the stamp is wrong, a user of the fence may remove annotation ` + stampKey + `"`,
		},
	}
}

func (f Fence) validate() error {
	switch {
	case len(validation.IsDNS1123Subdomain(f.Name)) > 0:
		return fmt.Errorf("leader: Fence: Name is %q: set it to a name for the policy, such as that of the Lease: lower case, digits, '-' and '.'", f.Name)
	case len(validation.IsDNS1123Label(f.LeaseNamespace)) > 0:
		return fmt.Errorf("leader: Fence: LeaseNamespace is %q: set it to the Namespace of the Elector", f.LeaseNamespace)
	case len(validation.IsDNS1123Subdomain(f.LeaseName)) > 0:
		return fmt.Errorf("leader: Fence: LeaseName is %q: set it to the Name of the Elector", f.LeaseName)
	case len(f.Users) == 0:
		return fmt.Errorf("leader: Fence: Users is empty: set it to the user names of the replicas, such as system:serviceaccount:%s:<name>", f.LeaseNamespace)
	case len(f.Resources) == 0:
		return fmt.Errorf("leader: Fence: Resources is empty: set it to what the leader writes")
	}
	switch f.ParameterNotFoundAction {
	case "", admissionregistrationv1.AllowAction, admissionregistrationv1.DenyAction:
	default:
		return fmt.Errorf("leader: Fence: ParameterNotFoundAction is %q: set it to Allow or Deny", f.ParameterNotFoundAction)
	}
	for i, user := range f.Users {
		account, isAccount := strings.CutPrefix(user, "system:serviceaccount:")
		ns, name, whole := strings.Cut(account, ":")
		if user == "" || isAccount && (!whole || len(validation.IsDNS1123Label(ns)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0) {
			return fmt.Errorf("leader: Fence: Users[%d] is %q: set it to a user name; that of a ServiceAccount is system:serviceaccount:<namespace>:<name>", i, user)
		}
	}
	for i, r := range f.Resources {
		if len(validation.IsDNS1123Subdomain(r.Resource)) > 0 || r.Group != "" && len(validation.IsDNS1123Subdomain(r.Group)) > 0 {
			return fmt.Errorf("leader: Fence: Resources[%d] is %q of group %q: set it to one resource by its plural name, without version, subresource or wildcard", i, r.Resource, r.Group)
		}
	}
	return nil
}
