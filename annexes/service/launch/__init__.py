"""Daemons of a standalone cluster: nodes that run tasks of submitted jobs, and the gateway."""
