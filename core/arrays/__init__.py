"""Arrays: dtypes, buffers, copies, checks and rows of larger arrays."""
