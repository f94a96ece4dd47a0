// Package pod knows the Pod of this process.
package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// NamespaceFile is where the kubelet writes the namespace of a Pod with a service account.
const NamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ErrOutside means that the process does not run in a Pod with a service account.
var ErrOutside = errors.New("the process does not run in a Pod with a service account")

// Namespace returns the namespace in the file.
func Namespace(file string) (string, error) {
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", ErrOutside
	case err != nil:
		return "", fmt.Errorf("read the namespace of the Pod: %w", err)
	}
	namespace := strings.TrimSpace(string(data))
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return "", fmt.Errorf("%s has %.100q, which is no name of a namespace", file, namespace)
	}
	return namespace, nil
}
