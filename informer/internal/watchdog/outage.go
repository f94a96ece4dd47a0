package watchdog

import "sync"

// An outage wakes the watches that wait for the API server.
type outage struct {
	mu    sync.Mutex
	again chan struct{} // is closed at its end; nil if nobody waits
}

// wait returns a channel that is closed at the next response.
func (o *outage) wait() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.again == nil {
		o.again = make(chan struct{})
	}
	return o.again
}

// end notes a response.
func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.again != nil {
		close(o.again)
		o.again = nil
	}
}
