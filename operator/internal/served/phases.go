package served

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// maxSchema bounds the schema of a group and version. The largest one of Kubernetes has 3 MB.
const maxSchema = 32 << 20

// A node is the part of an OpenAPI schema that CheckPhases reads.
type node struct {
	Kinds []struct {
		Group, Version, Kind string
	} `json:"x-kubernetes-group-version-kind"`
	Properties map[string]node `json:"properties"`
	Enum       []any           `json:"enum"`
	Type       string          `json:"type"`
}

// CheckPhases returns an error if the schema of a custom resource does not allow the phases as its
// status.phase. The schema of a new definition appears after some seconds, so CheckPhases waits for it
// until the timeout.
func CheckPhases(ctx context.Context, config *rest.Config, timeout time.Duration, kind schema.GroupVersionKind, phases []string) error {
	client, err := discovery(config)
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		found, err := schemaOf(timed, client, kind)
		if err == nil {
			return found.allows(kind, phases)
		}
		select {
		case <-timed.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("the schema of %s cannot be read, so its phases are not checked: allow get on /openapi/v3, or remove Phases: %w (after %v)", kind.Kind, err, timeout)
		case <-time.After(retryPeriod):
		}
	}
}

// schemaOf reads the schema of a kind.
func schemaOf(ctx context.Context, client rest.Interface, kind schema.GroupVersionKind) (n node, err error) {
	body, err := client.Get().AbsPath("/openapi/v3/apis", kind.Group, kind.Version).SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		return n, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	var document struct {
		Components struct {
			Schemas map[string]node `json:"schemas"`
		} `json:"components"`
	}
	if err := json.NewDecoder(io.LimitReader(body, maxSchema)).Decode(&document); err != nil {
		return n, err
	}
	for _, n := range document.Components.Schemas {
		for _, k := range n.Kinds {
			if schema.GroupVersionKind(k) == kind {
				return n, nil
			}
		}
	}
	return n, fmt.Errorf("the API server has no schema of %s", kind)
}

// allows returns an error if status.phase of n does not allow a phase.
func (n node) allows(kind schema.GroupVersionKind, phases []string) error {
	phase, ok := n.Properties["status"].Properties["phase"]
	switch {
	case !ok || phase.Type != "string":
		return fmt.Errorf("the schema of %s has no text status.phase: add it to the CustomResourceDefinition, or remove Phases", kind.Kind)
	case len(phase.Enum) == 0:
		return nil
	}
	for _, value := range phases {
		if !slices.Contains(phase.Enum, any(value)) {
			return fmt.Errorf("the schema of %s does not allow the phase %q: add it to the enum of status.phase, %s, or change Phases",
				kind.Kind, value, kube.Printable(fmt.Sprint(phase.Enum), 512))
		}
	}
	return nil
}
