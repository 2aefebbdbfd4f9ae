"""The jobs of a standing cluster, for commands that look at one."""

from .chief_of_job import jobs_of_cluster

__all__ = ["jobs_of_cluster"]
