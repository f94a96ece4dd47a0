// Package controllertest explores what a controller does under faults.
package controllertest
