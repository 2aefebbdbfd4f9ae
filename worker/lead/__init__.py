"""What the task that leads a job does: which job it is, its checkpoints, its loop and its end."""
