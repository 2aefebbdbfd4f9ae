"""``rw.training.torch``: what a PyTorch program uses of Ropewalk."""

from .checkpoint import save, write_checkpoint
from .embedding import EmbeddingBagCollection
from .jagged import KeyedJaggedTensor, KeyedTensor
from .loaders import WorkerLoader, gather_for_metrics
from .optimizer import DistributedModule, DistributedOptimizer
from .prepare import JobScheduler, prepare

__all__ = [
    "DistributedModule",
    "DistributedOptimizer",
    "EmbeddingBagCollection",
    "JobScheduler",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "WorkerLoader",
    "gather_for_metrics",
    "prepare",
    "save",
    "write_checkpoint",
]
