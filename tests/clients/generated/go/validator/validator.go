// Package validator stands for gopkg.in/validator.v2, so that the test needs no module from elsewhere.
package validator

// Validate finds nothing wrong with v.
func Validate(v any) error { return nil }
