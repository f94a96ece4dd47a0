//go:build !unix

package main

import "net"

// reservePort returns a free port of 127.0.0.1. Another process can take it before
// kube-apiserver listens: the start then fails with an error.
func reservePort() (port int, release func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, func() {}, nil
}
