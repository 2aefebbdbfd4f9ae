"""Checkpoints of variables in this process: of one strategy, for any other.

The same format as a job's checkpoints on parameter servers (``docs/checkpoints.md``), so what one
strategy saved another restores: whole variables by name, with the slots of their optimizer.
``ON_READ`` variables are saved as the value they read as, and shared out again when they are
restored.
"""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from ..core.arrays import Array, num_rows
from ..core.checkpoint import (
    CheckpointReader,
    Manifest,
    TensorFileWriter,
    TensorRecord,
    VariableRecord,
    checkpoint_path,
    latest_checkpoint,
    list_checkpoints,
    prune,
)
from ..core.checkpoint.directory import MANIFEST, open_fs
from ..core.checkpoint.tensor_file import TensorSpec
from ..core.errors import CheckpointError, ShapeMismatchError
from ..core.versions import own_versions
from .base.arrays import to_host
from .base.contexts import require_cross_replica
from .base.values import DistributedValues
from .variables.holders import holders_of
from .variables.mirrored import SyncOnReadVariable
from .variables.variable import Variable

_FILE = "variables.safetensors"


class Stateful(Protocol):
    """What keeps its place: an iterator of a distributed dataset, a random generator."""

    def state_dict(self) -> Mapping[str, Any]:
        """As JSON can hold it."""

    def load_state_dict(self, state: Any) -> None:
        """Go on from there."""


class Checkpoint:
    """Saves and restores variables, and the places of what keeps one. As ``tf.train.Checkpoint``.

    ::

        checkpoint = wl.Checkpoint([w, b], data=iterator)
        checkpoint.save("runs/model", global_step=100)
        checkpoint.restore("runs/model")

    Synchronous workers all save and restore together; the first one writes.

    Args:
        variables: Of one strategy, or of none; their names are their names in the checkpoint.
        keep: Checkpoints kept in a directory.
        places: What has ``state_dict`` and ``load_state_dict``, by name. Kept per checkpoint, not
            per worker.

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

    def save(self, directory: str, global_step: int | None = None) -> str:
        """Write a checkpoint ``directory/ckpt-<global step>``; its path.

        Args:
            directory: Path or fsspec URL.
            global_step: Its number; None: one more than the newest there.

        Raises:
            RuntimeError: In replica context.
            ValueError: An ON_READ variable without aggregation has no value to save.
            OSError: The file system refused.
        """
        strategy = self._strategy
        if strategy is not None:
            require_cross_replica(strategy, "Checkpoint.save")
        values = {name: _saved(variable) for name, variable in self._variables.items()}
        if global_step is None:
            newest = list_checkpoints(directory)
            global_step = self._agreed(newest[-1].global_step + 1 if newest else 1)
        path = checkpoint_path(directory, global_step)
        if strategy is None or strategy.extended.input_pipeline_id == 0:
            self._write(path, values, global_step)
            if path in [info.path for info in list_checkpoints(directory)[-self._keep :]]:
                prune(directory, self._keep)  # else it would remove what was just saved
        if strategy is not None:
            strategy.extended.any_worker(True)  # all workers wait until it is written
        return path

    def _agreed(self, number: int) -> int:
        """The first worker's number; others may see the directory later, or not at all."""
        if self._strategy is None:
            return number
        mine = DistributedValues([np.array(number, np.int64)])
        return int(self._strategy.extended.of_first_replica(mine))

    def _write(self, path: str, values: Mapping[str, Array], global_step: int) -> None:
        fs, root = open_fs(path)
        if fs.isdir(root):
            fs.rm(root, recursive=True)
        fs.makedirs(root, exist_ok=True)
        pieces: list[tuple[str, str, Array]] = []
        records: dict[str, VariableRecord] = {}
        for name, value in values.items():
            variable = self._variables[name]
            slots, updates, rule = _slots_of(variable)
            records[name] = VariableRecord(
                shape=value.shape,
                dtype=value.dtype.name,
                trainable=variable.trainable,
                updates=updates,
                rule=rule,
            )
            pieces.append((name, "", value))
            pieces += [(name, slot, array) for slot, array in slots.items()]
        specs = [
            TensorSpec(_label(number, name, slot), array.shape, array.dtype)
            for number, (name, slot, array) in enumerate(pieces)
        ]
        tensors = []
        with fs.open(f"{root}/{_FILE}", "wb") as stream:
            writer = TensorFileWriter(stream, specs)
            for spec, (name, slot, array) in zip(specs, pieces, strict=True):
                tensors.append(
                    TensorRecord(
                        variable=name,
                        slot=slot,
                        row_offset=0,
                        rows=num_rows(array.shape),
                        file=_FILE,
                        tensor=spec.name,
                        digest=writer.write(array),
                        num_bytes=array.nbytes,
                    )
                )
            writer.close()
        manifest = Manifest(
            global_step=global_step,
            saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            windlass=own_versions().windlass,
            variables=records,
            tensors=tuple(tensors),
            places={name: dict(place.state_dict()) for name, place in self._places.items()},
        )
        with fs.transaction:
            fs.pipe_file(f"{root}/{MANIFEST}", manifest.model_dump_json(indent=1).encode())

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
        found = {
            name: record
            for name in self._variables
            if (record := reader.variable(name)) is not None
        }
        if self._variables and not found:
            raise CheckpointError(
                f"{reader.path} has none of the variables {', '.join(sorted(self._variables))}; it "
                f"has {', '.join(sorted(reader.manifest.variables))}",
                path=reader.path,
            )
        for name, record in found.items():
            shape = self._variables[name].shape
            if tuple(record.shape) != shape:
                raise ShapeMismatchError(
                    f"{reader.path}: {name!r} has shape {tuple(record.shape)} there, the variable "
                    f"has {shape}",
                    variable=name,
                )
        for name, record in found.items():
            variable = self._variables[name]
            _assign(variable, reader.read(name))
            slots = {slot: reader.read(name, slot) for slot in reader.slots(name)}
            for holder in holders_of(variable):
                holder.restore_slots(slots, record.updates, record.rule)
        for name, place in self._places.items():
            if name in reader.manifest.places:
                place.load_state_dict(reader.manifest.places[name])
        return reader.manifest.global_step


def _label(number: int, name: str, slot: str) -> str:
    """A tensor's unique name in the file; variables may be named like slots, or
    ``__metadata__``.
    """
    return f"{number}:{name}:{slot}" if slot else f"{number}:{name}"


def _saved(variable: Variable) -> Array:
    # (ascontiguousarray would give a scalar an axis.)
    return np.asarray(to_host(variable.read_value()), order="C")


def _assign(variable: Variable, value: Array) -> None:
    if isinstance(variable, SyncOnReadVariable) and variable.aggregation.name == "NONE":
        for component in variable.values:
            component.assign(value)
        return
    variable.assign(value)


def _slots_of(variable: Variable) -> tuple[dict[str, Array], int, dict[str, Any] | None]:
    holders = holders_of(variable)
    return holders[0].slots() if holders else ({}, 0, None)
