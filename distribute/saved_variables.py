"""Variables of this process as a checkpoint, and back: what every kind of checkpoint is made of.

The same format as a job's checkpoints on parameter servers (``docs/checkpoints.md``), so what one
strategy saved another restores: whole variables, each under a key, with the slots of their
optimizer. ``ON_READ`` variables are saved as the value they read as, and shared out again when they
are restored.
"""

import datetime
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..core.arrays.any_framework import to_host
from ..core.arrays.dtypes import Array, num_rows
from ..core.checkpoint import (
    CheckpointReader,
    Manifest,
    TensorFileWriter,
    TensorRecord,
    VariableRecord,
)
from ..core.checkpoint.directory import commit_over
from ..core.checkpoint.folder import Folder, open_folder
from ..core.checkpoint.tensor_file import TensorSpec
from ..core.errors import ShapeMismatchError
from ..core.versions import own_versions
from .job_snapshots import SavedVariable
from .variables.holders import holders_of
from .variables.mirrored import SyncOnReadVariable
from .variables.variable import Variable

_FILE = "variables.safetensors"


class Stateful(Protocol):
    """An object that keeps its place: an iterator of a distributed dataset, a random generator."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the place, as JSON can hold it."""

    def load_state_dict(self, state: Any) -> None:
        """Go on from there."""


def saved_value(variable: Variable) -> Array:
    """Read what is saved of a variable.

    Raises:
        ValueError: An ON_READ variable without aggregation has no value.
    """
    # (ascontiguousarray would give a scalar an axis.)
    return np.asarray(to_host(variable.read_value()), order="C")


def capture(variable: Variable, value: Array | None = None) -> SavedVariable:
    """Copy a variable and its slots, so that they can be written while training goes on.

    Args:
        variable: A variable in this process's memory, or on servers, which keep the slots.
        value: An earlier result of :func:`saved_value`; None: the value now.

    Raises:
        ValueError: As :func:`saved_value`.
    """
    slots, updates, rule = _slots_of(variable)
    whole = saved_value(variable) if value is None else value
    return SavedVariable(whole, slots, updates, rule, variable.trainable)


_FILES = re.compile(r"variables(-[0-9a-f]{8})?\.safetensors")


def write_variables(
    path: str,
    variables: Mapping[str, SavedVariable],
    places: Mapping[str, Stateful],
    global_step: int,
) -> None:
    """Write a checkpoint, the manifest last.

    Args:
        path: The checkpoint's directory. An older one there is valid until this one is complete.
        variables: Variables by key.
        places: Stateful objects by key; their states are taken now.
        global_step: The checkpoint's number.

    Raises:
        OSError: The file system reports an error.
    """
    folder = open_folder(path)
    states = {name: dict(place.state_dict()) for name, place in places.items()}

    def write(before: list[str]) -> Manifest:
        file = _FILE if _FILE not in before else f"variables-{secrets.token_hex(4)}.safetensors"
        return write_values(folder, variables, global_step, places=states, file=file)

    commit_over(folder, write, lambda name: _FILES.fullmatch(name) is not None)


def write_values(
    folder: Folder,
    variables: Mapping[str, SavedVariable],
    global_step: int,
    *,
    final: bool = False,
    places: Mapping[str, dict[str, Any]] | None = None,
    file: str = _FILE,
) -> Manifest:
    """Write the values of a checkpoint, which is complete once the returned manifest is written.

    Args:
        folder: Folder of the checkpoint.
        variables: Variables by name.
        global_step: The checkpoint's number.
        final: The job is complete.
        places: States of iterators and random generators, by name.
        file: Name of the file that the values are written to.

    Raises:
        OSError: The file system reports an error.
    """
    folder.make()
    pieces: list[tuple[str, str, Array]] = []
    records: dict[str, VariableRecord] = {}
    for name, saved in variables.items():
        records[name] = VariableRecord(
            shape=saved.value.shape,
            dtype=saved.value.dtype.name,
            trainable=saved.trainable,
            updates=saved.updates,
            rule=dict(saved.rule) if saved.rule is not None else None,
        )
        pieces.append((name, "", saved.value))
        pieces += [(name, slot, array) for slot, array in saved.slots.items()]
    specs = [
        TensorSpec(_label(number, name, slot), array.shape, array.dtype)
        for number, (name, slot, array) in enumerate(pieces)
    ]
    tensors = []
    with folder.create(file) as stream:
        writer = TensorFileWriter(stream, specs)
        for spec, (name, slot, array) in zip(specs, pieces, strict=True):
            tensors.append(
                TensorRecord(
                    variable=name,
                    slot=slot,
                    row_offset=0,
                    rows=num_rows(array.shape),
                    file=file,
                    tensor=spec.name,
                    digest=writer.write(array),
                    num_bytes=array.nbytes,
                )
            )
        writer.close()
    return Manifest(
        global_step=global_step,
        final=final,
        saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ropewalk=own_versions().ropewalk,
        variables=records,
        tensors=tuple(tensors),
        files={file: writer.record},
        places=dict(places or {}),
    )


def restore_variables(
    reader: CheckpointReader, variables: Mapping[str, Variable], places: Mapping[str, Stateful]
) -> list[str]:
    """Give variables and places what the checkpoint has for their keys; the keys it has.

    Raises:
        CheckpointError: It is damaged.
        ShapeMismatchError: A variable has another shape there, or numbers its dtype does not hold;
            of shapes, before anything was changed.
    """
    records = {name: record for name in variables if (record := reader.variable(name)) is not None}
    for name, record in records.items():
        shape = variables[name].shape
        if tuple(record.shape) != shape:
            raise ShapeMismatchError(
                f"{reader.path}: {name!r} has shape {tuple(record.shape)} there, the variable "
                f"has {shape}",
                variable=name,
            )
    for name, record in records.items():
        variable = variables[name]
        _assign(variable, reader.read(name))
        slots = {slot: reader.read(name, slot) for slot in reader.slots(name)}
        for holder in holders_of(variable):
            holder.restore_slots(slots, record.updates, record.rule)
    saved_places = [name for name in places if name in reader.manifest.places]
    for name in saved_places:
        places[name].load_state_dict(reader.manifest.places[name])
    return [*records, *saved_places]


def _label(number: int, name: str, slot: str) -> str:
    """Make a tensor's unique name in the file; variables may be named like slots, or
    ``__metadata__``.
    """
    return f"{number}:{name}:{slot}" if slot else f"{number}:{name}"


def _assign(variable: Variable, value: Array) -> None:
    """Give it to every copy: also while replicas run, as a variable of their first step is made."""
    holders = holders_of(variable)
    if not holders:
        variable.assign(value)
        return
    shares: Sequence[Any] = [value] * len(holders)
    if isinstance(variable, SyncOnReadVariable) and variable.aggregation.name == "SUM":
        shares = variable.shares(value)
    for holder, share in zip(holders, shares, strict=True):
        holder.assign(share)


def _slots_of(variable: Variable) -> tuple[dict[str, Array], int, dict[str, Any] | None]:
    holders = holders_of(variable)
    return holders[0].slots() if holders else ({}, 0, None)
