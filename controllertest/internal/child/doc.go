// Package child signals a process together with those that it has started, such as the
// program that a shell or go run has started.
package child
