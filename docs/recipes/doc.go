// Package recipes has the code of the pages in its folder. Its tests run the code, most of them on a
// real API server, and internal/policy compares the code with the pages.
package recipes
