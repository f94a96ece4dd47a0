package leader

import "time"

// SetWall makes the wall clock of the Elector's next Run what f makes of a time
// that time.Now returned. In a synctest bubble it cannot jump by itself.
func (e *Elector) SetWall(f func(time.Time) time.Time) { e.wall = f }
