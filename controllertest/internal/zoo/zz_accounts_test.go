package zoo

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestZZAccounts(t *testing.T) {
	for _, f := range []Family{accountFamily(), tokensFamily(), finalizersFamily(), bucketsFamily()} {
		if want := os.Getenv("ZZ_FAMILY"); want != "" && want != f.Name {
			continue
		}
		bugs := []string{""}
		for _, m := range f.Mutants {
			bugs = append(bugs, m.Bug)
		}
		if b, ok := os.LookupEnv("ZZ_BUG"); ok {
			bugs = strings.Split(b, ",")
		}
		for _, bug := range bugs {
			o := controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, Parallel: 32, Settle: 3 * time.Second}
			if bug == "" {
				o.Settle = 8 * time.Second
			}
			if p := os.Getenv("ZZ_PLANS"); p != "" {
				o.Plans = strings.Split(p, "|")
			}
			if n, err := strconv.Atoi(os.Getenv("ZZ_TIMES")); err == nil {
				o.Plans = slices.Repeat(o.Plans, n)
			}
			if n, err := strconv.Atoi(os.Getenv("ZZ_SAMPLE")); err == nil {
				o.Sample = n
			}
			if k := os.Getenv("ZZ_KINDS"); k != "" {
				for _, k := range strings.Split(k, ",") {
					o.Faults = append(o.Faults, controllertest.Kind(k))
				}
			}
			r, err := controllertest.Run(t.Context(), f.Scenario(bug), o)
			if err != nil {
				fmt.Printf("== %s/%s: ERROR %v\n", f.Name, bug, err)
				continue
			}
			fmt.Printf("== %s/%s: %d plans, %d valid, %d failing, invalid %d, complete %v, %v\n", f.Name, bug, r.Plans, r.Valid, len(r.Failures), len(r.Invalid), r.Complete, r.Duration.Round(time.Millisecond))
			if os.Getenv("ZZ_OPS") != "" {
				for _, op := range r.Operations {
					fmt.Println("   op", op)
				}
			}
			for _, s := range r.Skipped {
				fmt.Println("   skipped", s)
			}
			for _, s := range r.Invalid {
				fmt.Println("   invalid", s)
			}
			for i, fail := range r.Failures {
				oracles := map[controllertest.Oracle]bool{}
				for _, x := range fail.Findings {
					oracles[x.Oracle] = true
				}
				fmt.Printf("   FAIL %q %v %.160s\n", fail.Plan, oracles, fail.Findings[0].Text)
				if bug == "" && i < 3 || os.Getenv("ZZ_TIMELINE") != "" {
					for _, x := range fail.Findings {
						fmt.Println("      ", x.Oracle, x.Text)
					}
					fmt.Println(fail.Timeline)
				}
			}
		}
	}
}
