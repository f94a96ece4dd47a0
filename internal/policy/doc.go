// Package policy has the rules of the repository as tests: who imports what, what is documented,
// and whether the packages fit together. A rule that is in the way is discussed and changed here,
// and not worked around.
package policy
