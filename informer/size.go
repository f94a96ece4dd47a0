package informer

import "github.com/controllerkit/controllerkit/informer/internal/size"

// Size estimates the bytes that an object of a cache takes in the heap, from the sizes of its
// strings, slices, maps and pointers: within 15 % for objects of the API. For the size of a
// cache, multiply the mean of a few of its objects by their number.
//
// Memory that two fields share counts twice. Memory beyond 100,000 strings, slices, maps and
// structs, or deeper than 500, does not count.
func Size(obj any) int64 {
	bytes, _ := size.Of(obj, 100_000)
	return bytes
}
