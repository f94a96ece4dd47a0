package watcher

import (
	"strings"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// maxText bounds the text of a failure, which may come from the server.
const maxText = 2048

// failure is the Err of a Retrying event. Its text is fit for a log.
type failure struct {
	step string // what failed: list, check, watch or bookmark
	err  error
}

func (f *failure) Unwrap() error { return f.err }

func (f *failure) Error() string {
	return "watcher: " + f.step + ": " + kube.Printable(strings.TrimPrefix(f.err.Error(), "watcher: "), maxText)
}
