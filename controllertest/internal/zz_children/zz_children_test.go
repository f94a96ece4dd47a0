package zoo

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// FAM=replicas BUG=x PLANS=a;b N=5
func TestZZChildren(t *testing.T) {
	all := map[string]Family{}
	for _, f := range []Family{replicasFamily(), resizeFamily(), rolloutFamily(), statusFamily()} {
		all[f.Name] = f
	}
	cfg := testserver.Config(t)
	for _, spec := range strings.Split(os.Getenv("SPECS"), ",") {
		fam, bug, _ := strings.Cut(spec, "/")
		f := all[fam]
		o := controllertest.Options{Config: cfg, Parallel: 16}
		if p := os.Getenv("PAR"); p != "" {
			o.Parallel, _ = strconv.Atoi(p)
		}
		if p := os.Getenv("SETTLE"); p != "" {
			o.Settle, _ = time.ParseDuration(p)
		}
		if p := os.Getenv("PLANS"); p != "" {
			o.Plans = strings.Split(p, ";")
		}
		if k := os.Getenv("KINDS"); k != "" {
			for _, kind := range strings.Split(k, ",") {
				o.Faults = append(o.Faults, controllertest.Kind(kind))
			}
		}
		r, err := controllertest.Run(context.Background(), f.Scenario(bug), o)
		fmt.Printf("==== %s/%s: err %v\n", fam, bug, err)
		if r == nil {
			continue
		}
		fmt.Printf("plans %d valid %d failing %d invalid %d complete %v in %v\nops %q\nskipped %q\n", r.Plans, r.Valid, len(r.Failures), len(r.Invalid), r.Complete, r.Duration, r.Operations, r.Skipped)
		for n, i := range r.Invalid {
			if n < 10 {
				fmt.Println("  invalid:", i)
			}
		}
		for n, fl := range r.Failures {
			var oracles []string
			for _, fi := range fl.Findings {
				oracles = append(oracles, string(fi.Oracle))
			}
			fmt.Printf("  FAIL %s  %v\n", fl.Plan, oracles)
			if v, _ := strconv.Atoi(os.Getenv("V")); n < v {
				for _, fi := range fl.Findings {
					fmt.Println("      ", fi.Oracle, fi.Text)
				}
				fmt.Println(fl.Timeline)
			}
		}
	}
}
