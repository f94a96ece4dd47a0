package testlog

// Problem is problem.
func Problem(isError bool, err error, msg string, kv ...any) string {
	if isError {
		return problem(errorLevel, err, msg, kv)
	}
	return problem(0, nil, msg, kv)
}
