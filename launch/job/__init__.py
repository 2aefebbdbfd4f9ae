"""The job file ``windlass.yaml``: what a job is, for every launcher."""
