"""``rw.training.torch``: what a PyTorch program uses of Ropewalk."""

from .checkpoint import save, write_checkpoint
from .embedding import EmbeddingBagCollection
from .jagged import KeyedJaggedTensor, KeyedTensor
from .optimizer import DistributedModule, DistributedOptimizer
from .prepare import JobScheduler, WorkerLoader, prepare

__all__ = [
    "DistributedModule",
    "DistributedOptimizer",
    "EmbeddingBagCollection",
    "JobScheduler",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "WorkerLoader",
    "prepare",
    "save",
    "write_checkpoint",
]
