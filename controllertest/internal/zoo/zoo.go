// Package zoo holds small controllers with one known bug each, all taken from
// reports about real controllers, and their correct twins. They are what the
// explorer of controllertest is tested with: it has to find every bug, and none in
// the twins.
//
// A family is one controller. Its bugs are switches in its code: the twin is the
// family with the bug "", so that a mutant differs from its twin in the lines at
// one switch.
package zoo

import "github.com/controllerkit/controllerkit/controllertest"

// A Family is a controller and the bugs that it can have.
type Family struct {
	Name     string
	Scenario func(bug string) controllertest.Scenario // "" is the correct one
	Mutants  []Mutant
}

// A Mutant is a bug of a family.
type Mutant struct {
	Bug       string                // what Scenario is called with
	Cause     string                // the class it belongs to, in a few words
	Does      string                // what the controller does wrong, in a sentence
	Reference string                // the report, as owner/repository#number or a URL
	Historic  bool                  // a bug of Sieve's table, or a famous issue, in miniature
	Plan      string                // one that kills it, as Options.Plans takes it; "" if the runs without faults do
	Oracle    controllertest.Oracle // one that fires under Plan
}

// Families returns all of them, by name.
func Families() []Family {
	return []Family{
		accountFamily(),
		bucketsFamily(),
		electedFamily(),
		finalizersFamily(),
		handoverFamily(),
		rawwatchFamily(),
		registerFamily(),
		replicasFamily(),
		resizeFamily(),
		rolloutFamily(),
		statusFamily(),
		tokensFamily(),
		workerFamily(),
	}
}
