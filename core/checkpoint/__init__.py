"""Checkpoints on disk or any fsspec file system.

A checkpoint is a directory ``ckpt-<global step>``: one or more safetensors files, written by the ps
that hold the shards, and ``manifest.json``, written last by the chief. A directory without a
manifest does not exist for readers, so a checkpoint is never half visible. The manifest has digests
of everything, itself included, so what is read is what was written.
"""

from .directory import (
    CheckpointInfo,
    Choice,
    checkpoint_path,
    choose_intact,
    latest_checkpoint,
    list_checkpoints,
    numbered_checkpoints,
    prune,
    remove_checkpoint,
    remove_incomplete,
)
from .export import export_checkpoint
from .manifest import FileRecord, Manifest, TensorRecord, VariableRecord, manifest_bytes
from .reader import CheckpointReader
from .tensor_file import TensorFileWriter

__all__ = [
    "CheckpointInfo",
    "CheckpointReader",
    "Choice",
    "FileRecord",
    "Manifest",
    "TensorFileWriter",
    "TensorRecord",
    "VariableRecord",
    "checkpoint_path",
    "choose_intact",
    "export_checkpoint",
    "latest_checkpoint",
    "list_checkpoints",
    "manifest_bytes",
    "numbered_checkpoints",
    "prune",
    "remove_checkpoint",
    "remove_incomplete",
]
