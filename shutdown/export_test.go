package shutdown

// SetTimeouts is what Server does with the timeouts of a server.
var SetTimeouts = setTimeouts
