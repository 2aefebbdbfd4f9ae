"""A job's checkpoints without its processes; as a program it saves until it is killed.

Arguments of the program: a model directory.
"""

import itertools
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from ropewalk.client.ps.control import PsControl
from ropewalk.core import annexes
from ropewalk.core.checkpoint import CheckpointReader
from ropewalk.core.checkpoint.folder import open_folder
from ropewalk.core.checkpoint.manifest import SavedPart
from ropewalk.core.checkpoint.storage import write_probe
from ropewalk.core.rules.definitions import VariableDefinition, cut
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.server.ps.saving import save_shards
from ropewalk.server.ps.store import Store
from ropewalk.worker.lead.checkpoint_sources import PsShards
from ropewalk.worker.lead.checkpointer import Checkpointer

WHO = Incarnation(TaskId("chief", 0), 1)


class StorePs:
    """What a chief asks of a ps, of a store in this process.

    Args:
        index: The ps's index.
        model_dir: Its own, which need not be the chief's.
    """

    def __init__(self, index: int, model_dir: str) -> None:
        self.task, self.address = TaskId("ps", index), f"ps{index}:1"
        self.store = Store(self.task, Settings())
        self.folder = open_folder(model_dir)
        self.fails: Exception | None = None

    def try_model_dir(self, probe: str, *, timeout_s: float) -> str:
        assert timeout_s > 0
        write_probe(self.folder, probe, str(self.task))
        return self.folder.url

    def save_shards(
        self,
        checkpoint: str,
        *,
        share: int,
        timeout_s: float,
        cut: int = 0,
        base: str = "",
        may_be_base: bool = False,
        process: int = 0,
    ) -> SavedPart:
        assert timeout_s > 0
        assert process == 0
        assert (share, cut) == (self.task.index, 0)
        folder = self.folder.subfolder(checkpoint)
        if "moments" in annexes.installed():
            moments: Any = import_module("ropewalk.annexes.moments.server.servicer")
            order = moments.SaveOrder(checkpoint, base, may_be_base)
            part: SavedPart = moments.save_moment(self.store, folder, order=order)
        else:
            part = save_shards(self.store, folder)
        if self.fails is not None:
            raise self.fails  # after its file is there
        return part

    def verify_shards(self, checkpoint: str, files: Sequence[str], *, timeout_s: float) -> None:
        assert timeout_s > 0
        CheckpointReader(self.folder.subfolder(checkpoint)).verify(files)


def checkpointer(
    model_dir: Path,
    *,
    seed: int = 0,
    rows: int = 4,
    ps: int = 2,
    keep: int = 3,
    theirs: Path | None = None,
) -> Checkpointer:
    """A chief and its ps with a random table in parts, and a constant that is always the same.

    Args:
        model_dir: The chief's.
        seed: The table's seed.
        rows: Number of rows of the table.
        ps: How many.
        keep: So many checkpoints.
        theirs: The model directory of the ps; None: the chief's.
    """
    table = Initializer("random_normal", seed=seed)
    servers = [StorePs(index, str(theirs or model_dir)) for index in range(ps)]
    variables = [
        VariableDefinition("table", (rows, 3), np.dtype(np.float32), table),
        VariableDefinition("beta", (2, 2), np.dtype(np.float32), Initializer("ones")),
    ]
    for variable in variables:
        for shard, server in zip(cut(variable, ps), servers, strict=True):
            server.store.table.define([shard], WHO)
    source = PsShards([cast(PsControl, server) for server in servers])
    return Checkpointer(str(model_dir), lambda: source, keep)


def main() -> None:
    saver = checkpointer(Path(sys.argv[1]), rows=20_000, keep=100)
    saver.prepare()
    chosen = saver.choose()
    for step in itertools.count(chosen.global_step + 1 if chosen is not None else 1):
        saver.save(step)
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
