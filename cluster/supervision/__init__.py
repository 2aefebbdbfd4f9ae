"""Supervision of tasks: what an exit means, when to stop and start again. Pure."""
