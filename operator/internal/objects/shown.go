package objects

// errLeft is an error of the class stale.
type errLeft string

func (e errLeft) Error() string {
	return "the selection of the informer of " + string(e) + " has changed since the call began, so what the call has read can be incomplete"
}

// Stale makes the reconcile loop call again.
func (errLeft) Stale() bool { return true }

// Stays returns a function that returns an error if the namespace has left the selection of an informer of package scope
// since Stays was called, also if it has returned. Then reads of this selection may have shown none of its objects.
func (r *Resource[T]) Stays(namespace string) func() error {
	scope, ok := r.indexer.(interface{ Region(namespace string) any })
	if !ok {
		return func() error { return nil }
	}
	region := scope.Region(namespace)
	return func() error {
		if scope.Region(namespace) != region {
			return errLeft(r.Name.String())
		}
		return nil
	}
}
