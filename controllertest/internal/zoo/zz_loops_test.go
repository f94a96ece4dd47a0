package zoo

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestZZLoops(t *testing.T) {
	for _, f := range []Family{workerFamily(), registerFamily(), rawwatchFamily(), electedFamily(), handoverFamily(), {Name: "sample", Scenario: func(string) controllertest.Scenario { return SampleController() }}} {
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
			o := controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, Parallel: 16, Settle: 5 * time.Second}
			if bug == "" {
				o.Settle = 0
			}
			if s, err := time.ParseDuration(os.Getenv("ZZ_SETTLE")); err == nil {
				o.Settle = s
			}
			plans := os.Getenv("ZZ_PLANS")
			if plans == "own" {
				plans = ""
				for _, m := range f.Mutants {
					if m.Bug == bug {
						plans = m.Plan
					}
				}
			}
			if plans != "" {
				o.Plans = strings.Split(plans, "|")
			}
			if n, err := strconv.Atoi(os.Getenv("ZZ_TIMES")); err == nil {
				o.Plans = slices.Repeat(o.Plans, n)
			}
			sc := f.Scenario(bug)
			if os.Getenv("ZZ_FORCE") != "" {
				var starts atomic.Int32
				start := sc.Start
				sc.Start = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
					starts.Add(1)
					return start(ctx, cfg, env)
				}
				sc.Invariants = append(sc.Invariants, controllertest.Invariant{Name: "force", Check: func(s *controllertest.State) error {
					if starts.Load() > 8 && len(s.Cloud()) > 0 {
						return fmt.Errorf("forced")
					}
					return nil
				}})
			}
			r, err := controllertest.Run(t.Context(), sc, o)
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
			for _, fl := range r.Failures {
				text := ""
				for _, x := range fl.Findings {
					text += fmt.Sprintf(" [%s] %.300s;", x.Oracle, strings.ReplaceAll(x.Text, "\n", " "))
				}
				fmt.Println("   FAIL", fl.Plan, "=>", text)
				if os.Getenv("ZZ_TIMELINE") != "" && !strings.Contains(text, "two accounts") {
					fmt.Println(fl.Timeline)
				}
			}
		}
	}
}
