"""The gateway of a standalone cluster: takes jobs from drivers, gives their tasks to nodes."""
