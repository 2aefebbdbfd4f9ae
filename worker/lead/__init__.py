"""Leading of a job: its identity, its checkpoints, its loop and its end."""
