// Package mistakes has no code: its tests are the proofs that docs/mistakes.md names.
package mistakes
