"""The cluster as data: its tasks, this process's task, variable placement, the job's state."""
