package priorityqueue

import (
	"os"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
)

// depths matches the depth of each priority. If SUMMED is set, it matches the depth of all
// priorities together.
func depths(want map[int]int) types.GomegaMatcher {
	if os.Getenv("SUMMED") == "" {
		return Equal(want)
	}
	sum := func(depths map[int]int) (sum int) {
		for _, depth := range depths {
			sum += depth
		}
		return sum
	}
	return WithTransform(sum, Equal(sum(want)))
}
