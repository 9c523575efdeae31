// Package tools has no code: go.mod names the programs to build.
package tools
