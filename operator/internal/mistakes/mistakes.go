// Package mistakes counts the lines of log about mistakes of the program. docs/mistakes.md lists them.
package mistakes

import "context"

// The mistakes, as values of a label.
const (
	ChangingChild    = "changing_child"
	ContestedField   = "contested_field"
	ContestedStatus  = "contested_status"
	HiddenDeletion   = "hidden_deletion"
	IgnoredContext   = "ignored_context"
	IgnoredStatus    = "ignored_status"
	OwnerElsewhere   = "owner_elsewhere"
	RenamedChild     = "renamed_child"
	RewrittenField   = "rewritten_field"
	Undeclared       = "undeclared_request"
	UnorderedList    = "unordered_list"
	UnrecordedWrite  = "unrecorded_write"
	UnwatchedChild   = "unwatched_child"
	WrongKindOfOwner = "wrong_kind_of_owner"
)

// All returns the mistakes.
func All() []string {
	return []string{
		ChangingChild, ContestedField, ContestedStatus, HiddenDeletion, IgnoredContext, IgnoredStatus, OwnerElsewhere, RenamedChild,
		RewrittenField, Undeclared, UnorderedList, UnrecordedWrite, UnwatchedChild, WrongKindOfOwner,
	}
}

type key struct{}

// With returns a context with which Note calls count. It calls count with 0 for each mistake, because a rate does not
// see the first value of a counter.
func With(ctx context.Context, count func(mistake string, lines int)) context.Context {
	for _, mistake := range All() {
		count(mistake, 0)
	}
	return context.WithValue(ctx, key{}, count)
}

// Note counts a line about a mistake, if ctx is derived from that of With.
func Note(ctx context.Context, mistake string) {
	if count, ok := ctx.Value(key{}).(func(string, int)); ok {
		count(mistake, 1)
	}
}
