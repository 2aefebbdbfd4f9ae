"""Features that the kernel does not know: each folder here can be removed with its tests."""
