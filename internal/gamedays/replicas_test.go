package gamedays

import (
	"slices"
	"time"
)

// replicaRows are about processes.
func replicaRows() []situation {
	return []situation{
		{
			name: "rolling", title: "A rolling update", sample: true,
			do: func(d *day) {
				for _, old := range slices.Clone(d.pods) {
					d.addPod(d.newPod(old.name + "-new"))
					d.edit("red", "shop", `{"spec":{"image":"example.com/site:`+old.name+`"}}`)
					d.deletePod(old)
					if took := d.await(limit, func() error { return d.right(nil) }); took > 5*time.Second {
						d.Errorf("an edit just before the end of %s was in effect after %v, want 5s", old.name, took)
					}
				}
			},
			onCall: "nothing", does: "The old leader releases the Lease after its calls, and a standby leads within a second.",
		},
		{
			name: "kill", title: "`kill -9` of the leader", sample: true, probes: dead, restarts: 1, bound: 40 * time.Second,
			do: func(d *day) {
				leader, _ := d.leader()
				leader.kill()
				d.ends()
				d.edit("red", "shop", `{"spec":{"replicas":3}}`)
			},
			onCall: "a restart", does: "The standby leads when the Lease has expired, 15 s after the last renewal.",
		},
	}
}
