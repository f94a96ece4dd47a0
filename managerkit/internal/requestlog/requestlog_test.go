package requestlog_test

import (
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/controllerkit/controllerkit/managerkit/internal/requestlog"
)

// TestWithout: a line has the name that the logger had, and the other values.
func TestWithout(t *testing.T) {
	var lines []string
	outer := funcr.New(func(prefix, line string) { lines = append(lines, prefix+" "+line) }, funcr.Options{LogCaller: funcr.All}).WithValues("controller", "a")
	l := requestlog.Without(outer).WithValues("x", 1, "controller", "b", "y", 2).WithName("n").WithValues("controller", "c")
	l.Info("m", "z", 3)
	l.WithCallDepth(0).Info("m", "z", 3)
	for _, line := range lines {
		const want = `n "caller"={"file"="requestlog_test.go" "line"=`
		if got := fmt.Sprintf("%.*s", len(want), line); got != want {
			t.Errorf("the line is %s, want it to begin with %s", line, want)
		}
		const values = `"level"=0 "msg"="m" "controller"="a" "x"=1 "y"=2 "z"=3`
		if got := line[max(0, len(line)-len(values)):]; got != values {
			t.Errorf("the line is %s, want it to end with %s", line, values)
		}
	}
	if len(lines) != 2 {
		t.Errorf("%d lines, want 2", len(lines))
	}
	requestlog.Without(logr.Logger{}).WithValues("controller", "d").Info("a logger without a sink")
}
