package encoded

// For the tests.
var (
	ErrShort = errShort
	Skip     = skip
)
