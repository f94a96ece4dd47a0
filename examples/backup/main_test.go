package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/controllerkit/controllerkit/examples/backup/controller"
)

// TestLog: the level of the settings is that of the lines of klog, which are JSON.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	level := new(slog.LevelVar)
	lines := logr.FromSlogHandler(newLogger(&out, level).Handler()) // as klog.SetSlogLogger makes it
	lines.V(4).Info("Detail")
	if out.Len() > 0 {
		t.Errorf("INFO shows %s", &out)
	}
	level.Set(slog.LevelDebug)
	lines.V(4).Info("Detail", "key", "ns/name")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["msg"] != "Detail" || line["key"] != "ns/name" {
		t.Errorf("DEBUG shows %s, error %v", &out, err)
	}
}

func TestRunErrors(t *testing.T) {
	if err := run(t.Context(), "/absent", "http://127.0.0.1:8054", controller.Options{}); err == nil || !strings.Contains(err.Error(), "read the kubeconfig") {
		t.Errorf("run without a kubeconfig = %v", err)
	}
}
