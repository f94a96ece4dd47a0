package page

import (
	"flag"
	"os"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
)

func addPreview(o *operator.Options) {
	flag.BoolFunc("preview", "print what this version would change, and exit", func(string) error {
		o.Preview = &preview.Preview{}
		return nil
	})
}

// show prints the report. Call it if op.Run has returned nil.
func show(p *preview.Preview) error {
	report := p.Report()
	if err := report.WriteText(os.Stdout); err != nil {
		return err
	}
	os.Exit(report.ExitCode())
	return nil
}
