package testcost

// RaceEnabled is true if the race detector is on.
const RaceEnabled = raceEnabled
