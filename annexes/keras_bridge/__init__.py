"""Keras 3 on JAX, PyTorch or TensorFlow: a compiled model whose weights all workers share.

The model stays the object it was: ``fit``, ``evaluate``, ``predict`` and ``train_on_batch`` are
Keras' own, callbacks see the model, files are Keras'.
"""

from .distributed_embedding import DistributedEmbedding
from .embedding import Embedding
from .inputs import DatasetCreator
from .model import distribute, shared_weights
from .weights import SharedWeights

__all__ = [
    "DatasetCreator",
    "DistributedEmbedding",
    "Embedding",
    "SharedWeights",
    "distribute",
    "shared_weights",
]
