package page

import (
	"context"
	"flag"
	"log/slog"
	"os"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/operator"
)
func flags() { klog.InitFlags(flag.CommandLine) } // before flag.Parse
func logJSON(verbosity int) {
	handler := slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-verbosity)})
	klog.SetSlogLogger(slog.New(handler))
}
func levelOfPage(op *operator.Operator, level *slog.LevelVar) { // the Level of the HandlerOptions
	if op.Debug == nil {
		return // Options.Debug is not set
	}
	op.Debug.Verbosity = func(verbosity int) (former int) {
		former = -int(level.Level())
		level.Set(slog.Level(-verbosity))
		return former
	}
}
func runWithValues(ctx context.Context, op *operator.Operator) error {
	logger := klog.FromContext(ctx).WithValues("cluster", "blue")
	return op.Run(klog.NewContext(ctx, logger))
}
