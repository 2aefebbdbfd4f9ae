"""The job file ``ropewalk.yaml``: what a job is, for every launcher."""
