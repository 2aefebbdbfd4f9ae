"""This process: memory, accelerators, threads, imports, tracebacks and logs."""
