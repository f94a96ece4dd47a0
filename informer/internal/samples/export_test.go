package samples

import "k8s.io/apimachinery/pkg/runtime"

// Changed reports whether an object differs from its copy, and where.
func Changed(obj, saved runtime.Object) (path string, differs bool) { return changed(obj, saved) }

// Held returns the number of the samples and the bytes that they account for.
func (s *Samples) Held() (n int, bytes int64) { return len(s.all), s.bytes }
