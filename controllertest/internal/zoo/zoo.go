// Package zoo has small controllers with one known bug each, from reports about real
// controllers, and their correct twins. They test the explorer of controllertest: it
// must find every bug, and no bug in the twins.
//
// A family is one controller. Its bugs are switches in its code. The twin is the family
// with the bug "", so a mutant differs from its twin in the lines at one switch.
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
	Bug       string                // the argument of Scenario
	Cause     string                // the class it belongs to, in a few words
	Does      string                // the wrong behaviour, in a sentence
	Reference string                // the report, as owner/repository#number or a URL
	Historic  bool                  // a bug of Sieve's table, or a famous issue, in miniature
	Plan      string                // a plan that finds it, in the form of Options.Plans; "" if the runs without faults find it
	Oracle    controllertest.Oracle // an oracle that fails under Plan
}

// Families returns all of them, by name.
func Families() []Family {
	return []Family{
		accountFamily(),
		bucketsFamily(),
		electedFamily(),
		finalizersFamily(),
		fleetFamily(),
		handoverFamily(),
		portsFamily(),
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
