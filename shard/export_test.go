package shard

import "time"

// SetWall makes the wall clock of the Group's next Run what f makes of a time that time.Now
// returned. In a synctest bubble it cannot jump by itself.
func (g *Group) SetWall(f func(time.Time) time.Time) { g.wall = f }
