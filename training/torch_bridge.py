"""``wl.training.torch``: what a PyTorch program uses of Windlass."""

from .torch_checkpoint import save, write_checkpoint
from .torch_embedding import EmbeddingBagCollection
from .torch_jagged import KeyedJaggedTensor, KeyedTensor
from .torch_optimizer import DistributedModule, DistributedOptimizer
from .torch_prepare import JobScheduler, WorkerLoader, prepare

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
