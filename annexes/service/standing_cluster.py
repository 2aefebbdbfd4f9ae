"""A standing cluster, for the commands of the kernel that can concern one."""

from .chief_of_job import chief_of_job
from .daemon import LocalStandaloneCluster, run_standalone

__all__ = ["LocalStandaloneCluster", "chief_of_job", "run_standalone"]
