"""TensorBoard's event files: what ``rw.summary`` and a job's own scalars are written to."""
