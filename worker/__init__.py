"""The daemons behind a task: joining a cluster, running the user's program, leaving in order."""
