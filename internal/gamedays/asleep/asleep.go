// Package asleep breaks the operators of the game days on purpose, which shows that the rows can fail.
package asleep

import "os"

// Variable is the environment variable with the path of a file.
const Variable = "GAMEDAYS_ASLEEP"

// Now reports whether the file exists. Then the calls of an operator do nothing and succeed.
func Now() bool {
	_, err := os.Stat(os.Getenv(Variable)) // "" does not exist
	return err == nil
}
