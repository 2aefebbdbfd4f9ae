"""Strategies: where variables are, how replicas run, and how their values become one."""
