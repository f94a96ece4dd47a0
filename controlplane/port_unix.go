//go:build unix

package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// reservePort returns a free port of 127.0.0.1, and reserves it until release is called:
// no other process gets it before kube-apiserver listens, whose command accepts no listener, or
// while it restarts. The socket is bound and never listens. kube-apiserver shares the port with
// it (SO_REUSEPORT), and only processes of this user could.
func reservePort() (port int, release func(), err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("reserve a port: %w", err)
	}
	unix.CloseOnExec(fd)
	release = func() { _ = unix.Close(fd) }
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	var address unix.Sockaddr
	if err == nil {
		address, err = unix.Getsockname(fd)
	}
	if err != nil {
		release()
		return 0, nil, fmt.Errorf("reserve a port: %w", err)
	}
	return address.(*unix.SockaddrInet4).Port, release, nil
}
