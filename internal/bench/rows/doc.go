// Package rows contains the rows that make bench measures, one in each file. Package
// bench describes how to add a row.
package rows
