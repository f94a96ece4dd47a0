// Package dns is an external service with DNS records, and its client. It stands for the
// provider of a real operator.
package dns
