//go:build !race

package testcost

const raceEnabled = false
