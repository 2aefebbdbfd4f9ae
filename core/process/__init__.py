"""The process itself: memory, accelerators, threads, imports, tracebacks and logs."""
