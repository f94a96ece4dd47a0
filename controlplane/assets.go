package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// The programs that controlplane is when it has their name, as in the folder of -assets.
const (
	asEtcd      = "etcd"
	asAPIServer = "kube-apiserver"
)

// runAs runs one of the programs with the arguments of this process, and exits. For another name it returns.
func runAs(name string) {
	switch name {
	case asEtcd:
		etcdmain.Main(os.Args)
		os.Exit(0)
	case asAPIServer:
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	}
}

// writeAssets puts the programs into a folder, which it makes if needed, and returns its absolute path. They are
// copies, because the file of `go run` is deleted.
func writeAssets(folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	extension := filepath.Ext(self) // .exe
	if extension != ".exe" {
		extension = ""
	}
	first, second := filepath.Join(folder, asAPIServer+extension), filepath.Join(folder, asEtcd+extension)
	if err := replace(first, func(name string) error { return copyFile(self, name) }); err != nil {
		return "", fmt.Errorf("-assets: %w", err)
	}
	err = replace(second, func(name string) error { return os.Link(first, name) })
	if err != nil { // a file system without links
		err = replace(second, func(name string) error { return copyFile(self, name) })
	}
	if err != nil {
		return "", fmt.Errorf("-assets: %w", err)
	}
	return folder, nil
}

// replace makes a file in one step, so that a program that runs, or starts, is not cut off.
func replace(name string, write func(name string) error) error {
	next := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := errors.Join(write(next), os.Rename(next, name)); err != nil {
		_ = os.Remove(next)
		return err
	}
	return nil
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
