"""``wl.training.torch``: what a PyTorch program uses of Windlass."""

from .torch_checkpoint import save, write_checkpoint
from .torch_optimizer import DistributedModule, DistributedOptimizer
from .torch_prepare import JobScheduler, WorkerLoader, prepare

__all__ = [
    "DistributedModule",
    "DistributedOptimizer",
    "JobScheduler",
    "WorkerLoader",
    "prepare",
    "save",
    "write_checkpoint",
]
