package responses

import "k8s.io/apimachinery/pkg/watch"

// Kept returns the bytes of the buffers of a watch.
func Kept(d watch.Decoder) int {
	e := d.(*events)
	return cap(e.frame) + cap(e.scratch)
}
