// Package myths has no code: its tests are the proofs that docs/myths.md names.
package myths
