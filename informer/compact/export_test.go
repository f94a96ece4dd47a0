package compact

// Encoded returns a copy of what the cache holds of an object.
func (i *Informer[T]) Encoded(namespace, name string) string {
	o, ok := i.object(namespace, name)
	if !ok {
		return ""
	}
	return string(o.Bytes())
}
