// Package gamedays has an operator that uses every package as the documentation says, and the days
// that operators live through: its tests are the rows of docs/gamedays.md.
//
// Each [TestGameDays] row starts a world of its own: an API server, a Prometheus with the shipped alerts,
// replicas of the operator as processes, a DNS service, and users. Something happens, and the row says what
// must be true afterwards: users' objects, the records of the service, probes, alerts that fire and alerts
// that stay quiet, lines of the log, and how long it takes. The checks read JSON from the API server and
// share no code with the library.
//
//	make gamedays              # all rows; writes docs/gamedays.md
//	go test . -run 'TestGameDays/kill'   # rows by their names
//	make gamedays-broken       # each row fails if the operator does nothing
package gamedays
