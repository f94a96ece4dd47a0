package gamedays

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// breaks breaks what the row promises: the operator sleeps from now on.
func (s situation) breaks(d *day) {
	d.Helper()
	if s.spoil != nil {
		s.spoil(d)
		return
	}
	if err := os.WriteFile(d.asleep, nil, 0o600); err != nil {
		d.Fatal(err)
	}
}

// TestBroken: no row passes if the operator breaks when its situation begins. It runs one row, and all with -every.
func TestBroken(t *testing.T) {
	args := []string{"-test.v", "-test.timeout=0", "-test.parallel=" + flag.Lookup("test.parallel").Value.String(), "-broken"}
	if *every {
		args = append(args, "-test.run=^TestGameDays$", "-every")
	} else {
		args = append(args, "-test.run=^TestGameDays$/^rows$/^edits$")
	}
	if *soak {
		args = append(args, "-soak")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err == nil {
		t.Error("all rows passed")
	}
	rows := regexp.MustCompile(`(?m)^ +--- (PASS|FAIL): TestGameDays/rows/(\S+) `).FindAllSubmatch(out.Bytes(), -1)
	if len(rows) == 0 {
		t.Fatalf("no row ran: %v\n%s", err, out.Bytes())
	}
	for _, row := range rows {
		if string(row[1]) == "PASS" {
			t.Errorf("the row %s passes with an operator that does nothing: it proves nothing", row[2])
		}
	}
	t.Logf("%d rows failed, as they must", len(rows))
}
