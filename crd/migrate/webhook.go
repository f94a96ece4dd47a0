package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// webhookOf returns the URL of the conversion webhook of a definition, or the namespace and the name
// of its Service, or "".
func webhookOf(definition *unstructured.Unstructured) string {
	config, _, _ := unstructured.NestedMap(definition.Object, "spec", "conversion", "webhook", "clientConfig")
	name, _ := config["url"].(string)
	if service, ok := config["service"].(map[string]any); ok {
		name = fmt.Sprint(service["namespace"], "/", service["name"])
	}
	return kube.Printable(name, 512)
}

// failedConversion returns the part of the API server's response that follows the words "conversion
// webhook for", or "". The code of the response is 500, or 429 while the API server cannot fill its
// cache of the resource.
func failedConversion(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return ""
	}
	_, failure, _ := strings.Cut(status.Status().Message, "conversion webhook for ")
	return failure
}

// isOutage reports whether the API server could not call the conversion webhook. The other failures
// are in the webhook's responses, and concern one object. The response has no reason, so the texts of
// net/http and client-go decide.
func isOutage(err error) bool {
	_, failure, _ := strings.Cut(failedConversion(err), " failed: ")
	for _, text := range []string{
		"Post ",                    // no connection, no valid certificate, or no response in time
		"an error on the server (", // 500, 502
		"the server is currently unable to handle the request",            // 503
		"the server was unable to return a response in the time allotted", // 504
		"the server has received too many requests",                       // 429
		"the server could not find the requested resource",                // 404, such as of a proxy
	} {
		if strings.HasPrefix(failure, text) {
			return true
		}
	}
	return false
}

// isRejection reports whether the conversion webhook has responded that it cannot convert an object.
func isRejection(err error) bool {
	return failedConversion(err) != "" && !isTransient(err)
}

// retry calls a request for objects until the API server can handle it, or ctx is done. If the API
// server cannot call the conversion webhook, the condition has the reason Waiting meanwhile. An error of
// the condition is not returned, because the next step of the pass finds it.
func (p *pass) retry(ctx context.Context, verb, name string, request func(context.Context) error) error {
	waits := false
	err := p.m.retry(ctx, verb, name, func(limited context.Context) error {
		err := p.name(request(limited))
		if ctx.Err() == nil && isTransient(err) && failedConversion(err) != "" {
			waits = true
			if status := p.setStatus(ctx, false, metav1.ConditionFalse, "Waiting", kube.Message(err.Error()+". The migration continues when the webhook responds.")); errors.Is(status, errChanged) {
				return status
			}
		}
		return err
	})
	if waits && ctx.Err() == nil && !errors.Is(err, errChanged) {
		if status := p.setStatus(ctx, false, metav1.ConditionFalse, "Running", p.running()); errors.Is(status, errChanged) {
			return status
		}
	}
	return err
}

// name adds the conversion webhook and the cure to an error that it caused.
func (p *pass) name(err error) error {
	switch {
	case failedConversion(err) == "":
		return err
	case !isRejection(err):
		return fmt.Errorf("the conversion webhook %s fails: repair it, or spec.conversion of the definition: %w", p.definition.webhook, err)
	}
	return fmt.Errorf("the conversion webhook %s cannot convert the object: correct the webhook or the object: %w", p.definition.webhook, err)
}

// running is the message of the condition during the pass.
func (p *pass) running() string { return "The objects are being stored in " + p.storage.name + "." }
