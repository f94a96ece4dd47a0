//go:build staging

// This file is never built. Kubernetes' go.mod requires its staging modules at v0.0.0
// and replaces them with folders. Therefore a module that requires Kubernetes must
// require each of them at a real version, and go mod tidy keeps only requirements that
// a file imports. No other file here imports these modules.

package main

import (
	_ "k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/code-generator/pkg/namer"
	_ "k8s.io/cri-streaming/pkg/streaming"
	_ "k8s.io/sample-apiserver/pkg/apis/wardle"
	_ "k8s.io/sample-cli-plugin/pkg/cmd"
	_ "k8s.io/sample-controller/pkg/signals"
)
