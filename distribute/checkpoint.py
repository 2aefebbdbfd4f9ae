"""Checkpoints of variables in this process, each under its name: of one strategy, for any other.

A job's checkpoints on parameter servers have the same format and the same names. Under names that
come from the program's objects: ``train.py``.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..core.checkpoint import (
    CheckpointReader,
    checkpoint_path,
    latest_checkpoint,
    list_checkpoints,
    prune,
)
from ..core.errors import CheckpointError
from ..core.terminal import Shown
from .base.contexts import require_cross_replica
from .base.values import DistributedValues
from .saved_variables import (
    Stateful,
    capture,
    restore_variables,
    saved_value,
    write_variables,
)
from .variables.variable import Variable


class Checkpoint(Shown):
    """Saves and restores variables by their names, and the places of what keeps one.

    ``rw.train.Checkpoint`` takes models and optimizers instead, as TensorFlow's.

    ::

        checkpoint = rw.Checkpoint([w, b], data=iterator)
        checkpoint.save("runs/model", global_step=100)
        checkpoint.restore("runs/model")

    Synchronous workers all save and restore together; the task whose ``strategy.should_save`` is
    true writes: the first of synchronous workers, the chief of a parameter-server job.

    Args:
        variables: Variables of one strategy, or of none; the checkpoint has them by their names.
        keep: Checkpoints kept in a directory.
        places: Objects that have ``state_dict`` and ``load_state_dict``, by name. Kept per
            checkpoint, not per worker.

    Raises:
        ValueError: Two variables have one name, or belong to different strategies; or ``keep`` < 1.
    """

    def __init__(self, variables: Iterable[Variable], *, keep: int = 5, **places: Stateful) -> None:
        if keep < 1:
            raise ValueError(f"at least one checkpoint is kept, got keep={keep}")
        self._variables: dict[str, Variable] = {}
        for variable in variables:
            if variable.name in self._variables:
                raise ValueError(
                    f"two variables are named {variable.name!r}; give them names of their own"
                )
            self._variables[variable.name] = variable
        strategies = {
            id(variable.strategy): variable.strategy for variable in self._variables.values()
        }
        if len(strategies) > 1:
            raise ValueError("the variables of one checkpoint belong to one strategy")
        self._strategy = next(iter(strategies.values()), None)
        self._keep = keep
        self._places = places

    def _shown(self) -> dict[str, Any]:
        return {"variables": list(self._variables), "keep": self._keep}

    def save(self, directory: str, global_step: int | None = None) -> str:
        """Write a checkpoint ``directory/ckpt-<global step>``; its path.

        Args:
            directory: Path or fsspec URL.
            global_step: Number of the checkpoint; None: one more than the newest there.

        Raises:
            RuntimeError: In replica context.
            ValueError: An ON_READ variable without aggregation has no value to save.
            OSError: The file system refused.
        """
        strategy = self._strategy
        if strategy is not None:
            require_cross_replica(strategy, "Checkpoint.save")
        values = {name: saved_value(variable) for name, variable in self._variables.items()}
        if global_step is None:
            newest = list_checkpoints(directory)
            global_step = self._agreed(newest[-1].global_step + 1 if newest else 1)
        path = checkpoint_path(directory, global_step)
        if strategy is None or strategy.should_save:
            saved = {name: capture(self._variables[name], values[name]) for name in values}
            write_variables(path, saved, self._places, global_step)
            if path in [info.path for info in list_checkpoints(directory)[-self._keep :]]:
                prune(directory, self._keep)  # else it would remove what was just saved
        if strategy is not None:
            strategy.extended.any_worker(True)  # all workers wait until it is written
        return path

    def _agreed(self, number: int) -> int:
        """Agree on the first worker's number; others may see the directory later, or not at all."""
        if self._strategy is None:
            return number
        mine = DistributedValues([np.array(number, np.int64)])
        return int(self._strategy.extended.of_first_replica(mine))

    def restore(self, path: str) -> int:
        """Restore from a checkpoint, or the newest one in a directory; returns its global step.

        Variables the checkpoint does not have keep their values.

        Raises:
            CheckpointError: There is none, or it is damaged.
            ShapeMismatchError: A variable has another shape there, or numbers its dtype does not
                hold.
        """
        if self._strategy is not None:
            require_cross_replica(self._strategy, "Checkpoint.restore")
        newest = latest_checkpoint(path)
        reader = CheckpointReader(newest.path if newest is not None else path)
        if self._variables and not any(reader.variable(name) for name in self._variables):
            raise CheckpointError(
                f"{reader.path} has none of the variables {', '.join(sorted(self._variables))}; it "
                f"has {', '.join(sorted(reader.manifest.variables))}",
                path=reader.path,
            )
        restore_variables(reader, self._variables, self._places)
        return reader.manifest.global_step
