"""The process of one task: its program and how that ends, signals, logs, probes and limits."""
