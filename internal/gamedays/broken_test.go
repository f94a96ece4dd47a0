package gamedays

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// brokenFrom is the line of a row whose world stood when it was broken. A row that fails before shows nothing.
const brokenFrom = "broken from here: "

// breaks breaks what the row promises: the operator sleeps from now on.
func (s situation) breaks(d *day) {
	d.Helper()
	d.Log(brokenFrom + s.name + ".")
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
	const one = "edits"
	args := []string{"-test.v", "-test.timeout=0", "-test.parallel=" + flag.Lookup("test.parallel").Value.String(), "-broken"}
	if *every {
		args = append(args, "-test.run=^TestGameDays$", "-every")
	} else {
		args = append(args, "-test.run=^TestGameDays$/^rows$/^"+one+"$")
	}
	if *soak {
		args = append(args, "-soak")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run() // the rows fail
	rows := 0
	for _, s := range situations() {
		if !s.runs() || !*every && s.name != one {
			continue
		}
		rows++
		verdict := regexp.MustCompile(`(?m)^ +--- (PASS|FAIL): TestGameDays/rows/` + s.name + ` `).FindSubmatch(out.Bytes())
		switch {
		case verdict == nil || !bytes.Contains(out.Bytes(), []byte(brokenFrom+s.name+".")):
			t.Errorf("the row %s did not come to its situation", s.name)
		case string(verdict[1]) == "PASS":
			t.Errorf("the row %s passes with an operator that does nothing: it proves nothing", s.name)
		}
	}
	if t.Logf("%d rows failed, as they must", rows); t.Failed() {
		t.Logf("%v\n%s", err, out.Bytes())
	}
}
