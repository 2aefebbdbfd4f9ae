"""Writing a ps's part of a checkpoint while training goes on, below its own model directory.

Blocks are read one after the other, some of each at a time (``block_reader.py``). All is of the
moment it is copied, unless another :class:`SaveSource` has what is of one moment, or has changed.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

from ...core.arrays.buffers import present_buffer
from ...core.checkpoint.directory import checkpoint_name
from ...core.checkpoint.folder import Folder, open_folder
from ...core.checkpoint.manifest import SavedPart, TensorRecord
from ...core.checkpoint.storage import open_model_dir
from ...core.checkpoint.tensor_file import TensorFileWriter
from ...core.errors import ConfigurationError
from ...core.task import TaskId
from .block_reader import (
    COPY_BYTES,
    ArrayReader,
    BlockReader,
    PlannedTensor,
    TableCopy,
    piece_bytes,
)
from .store import Store

# -- The model directory of a ps: the only place where it reads and writes files ---------------
# Callers name a checkpoint, never a path or URL; where it is, the ps was told when it was started.


class PsModelDir:
    """See the module. Thread-safe.

    Args:
        task: The ps, for messages.
        url: Setting ``model_dir`` of the ps; empty: it was given none.
    """

    def __init__(self, task: TaskId, url: str) -> None:
        self._task = task
        self.url = url

    def folder(self) -> Folder:
        """Open the directory itself.

        Raises:
            ConfigurationError: This ps was given none, or it is no URL that can be used here.
        """
        if not self.url:
            raise ConfigurationError(
                f"{self._task} was started without a model directory, so it can neither save nor "
                "restore: give it --model-dir (or ROPEWALK_MODEL_DIR), the same as the chief's",
                task=self._task,
            )
        return open_model_dir(self.url)

    def checkpoint(self, name: str) -> Folder:
        """Open a checkpoint in it.

        Raises:
            RefusedError: ``name`` is not that of a job's checkpoint.
            ConfigurationError: See :meth:`folder`.
        """
        return self.folder().subfolder(checkpoint_name(name))


# -- Saving --------------------------------------------------------------------------------------

# Above the process's: a tenth of the share of a step's thread, where both want the same core.
_NICENESS = 10


def give_way() -> None:
    """Let the threads of steps go before this one, for as long as it lives.

    Digests and writes take no lock, but a step would wait for a core until their time slice ends.
    """
    if sys.platform == "linux":  # elsewhere it would be the priority of the process
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
            os.setpriority(os.PRIO_PROCESS, thread, min(19, niceness))


class SaveSource:
    """The content of a checkpoint: all of a store, each tile of the moment it is copied.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def pushes(self) -> int:
        """Number of pushes that are in what is saved, and perhaps later ones. Asked first."""
        return self._store.pushes

    @property
    def global_step(self) -> int:
        """Global step of what was saved. Asked when all is written."""
        return self._store.global_step

    def readers(self, most: int) -> Sequence[BlockReader]:
        """Plan readers of all blocks, in the order of the file.

        A slot that is bound later waits for the next checkpoint.

        Args:
            most: Bytes of a piece.
        """
        table = self._store.table
        arrays = [ArrayReader(block, most) for block in table.blocks()]
        return [*arrays, *(TableCopy(part, most) for part in table.tables())]

    def check(self) -> None:
        """Go on only if what was read is what was to be saved. Called when all is written."""


def save_shards(
    store: Store,
    directory: str | Folder,
    copy_bytes: int = COPY_BYTES,
    source: SaveSource | None = None,
) -> SavedPart:
    """Write every initialized shard of ``store`` to ``directory/ps-<share>.safetensors``.

    Args:
        store: The shards of this ps.
        directory: Directory of the checkpoint: a path, a fsspec URL or an open folder.
        copy_bytes: Bytes copied at a time, in extra memory; up to 32 MiB on a ps with over 16 GiB.
        source: Content of the checkpoint; None: all of the store.

    Raises:
        OSError: The file system refused.
        RopewalkError: The source has not what was to be saved.
    """
    source = source or SaveSource(store)
    folder = open_folder(directory) if isinstance(directory, str) else directory
    folder.make()
    pushes = source.pushes
    file = f"ps-{store.share}.safetensors"
    most = piece_bytes(store.table.bytes_in_use(), copy_bytes)
    taken = {"__metadata__"}  # reserved by safetensors
    planned = [
        (reader, [_named(tensor, taken) for tensor in reader.planned])
        for reader in source.readers(most)
    ]
    memory = present_buffer(most)  # before a lock is taken: page faults must not make pushes wait
    records: list[TensorRecord] = []
    with folder.create(file) as stream:
        writer = TensorFileWriter(stream, [each.spec for _, group in planned for each in group])
        for reader, group in planned:
            for tensor, parts in zip(group, reader.read(memory), strict=True):
                digest = writer.write_parts(parts)
                records.append(_record(tensor, file, reader.part, digest))
        source.check()
        writer.close()
    numbered = [*enumerate(reader for reader, _ in planned)]
    return SavedPart(
        tuple(records),
        tuple(shard for number, reader in numbered for shard in reader.saved(number)),
        {number: dict(reader.applied) for number, reader in numbered},
        source.global_step,
        {file: writer.record},
        pushes,
    )


def _named(tensor: PlannedTensor, taken: set[str]) -> PlannedTensor:
    """Give an array a name that no other has; a variable may be named like a slot of another."""
    name = tensor.spec.name
    while name in taken:
        name += "_"
    taken.add(name)
    return replace(tensor, spec=replace(tensor.spec, name=name))


def _record(tensor: PlannedTensor, file: str, part: int, digest: str) -> TensorRecord:
    return TensorRecord(
        variable=tensor.shard.variable.name,
        slot=tensor.slot,
        row_offset=tensor.row_offset,
        rows=tensor.rows,
        file=file,
        tensor=tensor.spec.name,
        digest=digest,
        num_bytes=tensor.spec.num_bytes,
        part=part,
    )
