"""``wl.training.torch``: what a PyTorch program uses of Windlass."""

from .torch_checkpoint import write_checkpoint
from .torch_optimizer import DistributedModule, DistributedOptimizer
from .torch_prepare import JobScheduler, WorkerLoader, prepare

__all__ = [
    "DistributedModule",
    "DistributedOptimizer",
    "JobScheduler",
    "WorkerLoader",
    "prepare",
    "write_checkpoint",
]
