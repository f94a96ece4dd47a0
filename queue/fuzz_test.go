package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit"
)

// FuzzOperations runs operations on the queue and on the model; each takes three
// bytes. Run it with -fuzzminimizetime=5x: otherwise minimizing takes the time.
func FuzzOperations(f *testing.F) {
	f.Add([]byte{0, 0, 0, 4, 0, 0, 5, 0, 0})                         // add, get, done
	f.Add([]byte{1, 0, 0, 0, 0, 0, 1, 1, 3, 4, 0, 0, 4, 0, 0})       // a low key is raised
	f.Add([]byte{2, 0, 9, 0, 0, 0, 4, 0, 0, 5, 0, 0, 7, 0, 15})      // an add cancels a delay
	f.Add([]byte{0, 0, 0, 4, 0, 0, 3, 0, 0, 9, 0, 0, 5, 0, 0})       // a retry during a drain
	f.Add([]byte{1, 0, 0, 7, 0, 11, 0, 1, 0, 0, 2, 0, 0, 3, 0, 4, 0, // a low key waits too long
		0, 4, 0, 0, 4, 0, 0, 4, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 600 {
			t.Skip("long runs find nothing that short ones do not")
		}
		synctest.Test(t, func(t *testing.T) {
			c := newMachine(t)
			for ; len(data) >= 3; data = data[3:] {
				key := modelKeys[int(data[1])%len(modelKeys)]
				seconds := time.Duration(data[2]%16) * time.Second
				priority := modelPriorities[int(data[2]>>4)%len(modelPriorities)]
				switch data[0] % 13 {
				case 0:
					c.Add(key)
				case 1:
					c.AddWith(controllerkit.AddOptions{Priority: modelPriorities[int(data[2])%len(modelPriorities)]}, key)
				case 2:
					c.AddAfter(key, seconds)
				case 3:
					c.AddRateLimited(key)
				case 4:
					c.Get()
				case 5:
					c.Done(key)
				case 6:
					c.Forget(key)
				case 7:
					c.Advance(seconds)
				case 8:
					c.AddWith(controllerkit.AddOptions{Priority: priority, After: seconds, RateLimited: data[2]%2 == 0}, key)
				case 9:
					c.Drain()
				case 10:
					c.DrainCancelled()
				case 11:
					c.ShutDown()
				case 12:
					c.Clear()
				}
				c.Check()
			}
			c.Finish()
		})
	})
}
