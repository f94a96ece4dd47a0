// Package otlptest has the test that exports spans to the OTLP receiver of the collector.
package otlptest
