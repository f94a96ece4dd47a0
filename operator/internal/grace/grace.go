// Package grace reads the time that a Pod leaves to its processes when it is deleted.
package grace

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/typed"
)

// retryPeriod is the time between two attempts.
const retryPeriod = time.Second

// Of returns the time between SIGTERM and SIGKILL in a Pod: terminationGracePeriodSeconds,
// less the longest sleep of a preStop hook. The time of other hooks is not known. It repeats
// requests that fail until the timeout, unless a repetition cannot help.
func Of(ctx context.Context, config *rest.Config, timeout time.Duration, namespace, name string) (time.Duration, error) {
	client, err := typed.New(config, corev1.SchemeGroupVersion, "pods", corev1.AddToScheme, func() *corev1.Pod { return &corev1.Pod{} })
	if err != nil {
		return 0, err
	}
	var pod *corev1.Pod
	var failed error
	err = wait.PollUntilContextTimeout(ctx, retryPeriod, timeout, true, func(ctx context.Context) (bool, error) {
		got, err := client.In(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, fmt.Errorf("namespace %q has no such Pod: use the name that fieldRef metadata.name gives the container: %w", namespace, err)
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return false, fmt.Errorf("the Pod may not be read: a Role in namespace %q must allow verb \"get\" on pods, or leave Options.Pod empty: %w", namespace, err)
		case err != nil:
			if failed == nil || ctx.Err() == nil {
				failed = err
			}
			return false, nil
		}
		pod = got
		return true, nil
	})
	switch {
	case pod != nil:
		return of(pod), nil
	case wait.Interrupted(err) && ctx.Err() == nil && failed != nil:
		return 0, fmt.Errorf("the Pod cannot be read within %v: %w", timeout, failed)
	}
	return 0, err
}

func of(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds) // the API server sets the field
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	var sleep int64
	for _, c := range pod.Spec.Containers {
		if l := c.Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
			sleep = max(sleep, l.PreStop.Sleep.Seconds)
		}
	}
	// Both are hours at most in practice; a year keeps the arithmetic in its bounds.
	return time.Duration(min(seconds, 365*24*3600)-min(sleep, 365*24*3600)) * time.Second
}
