"""Checkpoints on disk or any fsspec file system.

A checkpoint is a directory ``ckpt-<global step>``: one or more safetensors files, written by the ps
that hold the shards, and ``manifest.json``, written last by the chief. A directory without a
manifest does not exist for readers, so a checkpoint is never half visible.
"""

from .directory import (
    CheckpointInfo,
    checkpoint_path,
    latest_checkpoint,
    list_checkpoints,
    numbered_checkpoints,
    prune,
    remove_checkpoint,
    remove_incomplete,
)
from .export import export_checkpoint
from .manifest import Manifest, TensorRecord, VariableRecord
from .reader import CheckpointReader
from .tensor_file import TensorFileWriter

__all__ = [
    "CheckpointInfo",
    "CheckpointReader",
    "Manifest",
    "TensorFileWriter",
    "TensorRecord",
    "VariableRecord",
    "checkpoint_path",
    "export_checkpoint",
    "latest_checkpoint",
    "list_checkpoints",
    "numbered_checkpoints",
    "prune",
    "remove_checkpoint",
    "remove_incomplete",
]
