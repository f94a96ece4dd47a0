// Package rows holds what make bench measures, a file each. See package bench
// for how to add one.
package rows
