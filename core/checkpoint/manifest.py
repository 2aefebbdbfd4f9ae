"""``manifest.json``: what a checkpoint holds, and where. Written last; read first.

Its first field is the digest of all bytes after that field, so a manifest is either as it was
written or refused. It has the digests of everything else: of the head of each file, in which a
number drawn for this save binds the file to it, and of each array.
"""

import datetime
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..arrays.dtypes import as_dtype
from ..errors import CheckpointError, LimitExceededError, RefusedError
from ..rules.definitions import RowOptions, ShardDefinition
from ..task import TaskId
from ..versions import own_versions
from ..wire.bounds import MAX_COUNT
from .folder import plain_name

# -- Digests of what is stored: they detect damage, not forgery --------------------------------

XXH3 = "xxh3:"
DIGEST_CHARS = len(XXH3) + 32


def digest(data: memoryview | bytes) -> str:
    """Compute XXH3-128, as ``xxh3:`` and hex: faster than the disk."""
    return f"{XXH3}{xxhash.xxh3_128_hexdigest(data)}"


def has_digest(data: memoryview | bytes, expected: str) -> bool:
    """Return whether the digest of ``data`` is ``expected``; that of older checkpoints is
    BLAKE2b-128 in hex.
    """
    if ":" not in expected:
        return hashlib.blake2b(data, digest_size=16).hexdigest() == expected
    return digest(data) == expected


# -- What is in a manifest ---------------------------------------------------------------------

_BEGINS = b'{\n "digest": "'
_THEN = b'",'
_MAX_DIMENSIONS = 64  # NumPy's
_DELTA = 3
_HEAD_BYTES = 256  # digest, format and version
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
"""More is neither written nor read: some 700,000 pieces of variables."""

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Shape = Annotated[tuple[_Count, ...], Field(max_length=_MAX_DIMENSIONS)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class VariableRecord(_Record):
    """A record of a whole variable, whatever its shards were when it was saved.

    Attributes:
        updates: Number of times that its update rule had been applied; Adam's ``t``.
        rule: Fields of its update rule, or None.
    """

    shape: _Shape
    dtype: str
    trainable: bool = True
    updates: _Count = 0
    rule: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        try:
            num_bytes = as_dtype(self.dtype).itemsize
        except TypeError as error:
            raise ValueError(str(error)) from None
        for extent in self.shape:
            num_bytes *= max(1, extent)
        if num_bytes > MAX_COUNT:
            raise ValueError(f"no array has the shape {self.shape}")
        return self


class TableRecord(_Record):
    """A growing table.

    Attributes:
        dim: Elements of a row.
        parts: Number of parts in which it was saved, one for each ps.
        rule: Fields of its update rule.
    """

    max_rows: _Count
    dim: _Count
    dtype: str
    parts: _Count
    rule: dict[str, Any]


class TensorRecord(_Record):
    """A record of a stored piece: rows ``[row_offset, row_offset + rows)`` of a variable or of a
    slot of it.

    Of a growing table it is a column of some places of one part, whether rows are there or not, or
    an array of what its admission remembers. What a delta has of changed rows is in ``delta.py``.

    Attributes:
        slot: Name of the slot variable; empty for the value itself. Of a table name of the column.
        part: Part of a table.
        file: Name of the file in the checkpoint's directory.
        tensor: Name of the piece in the safetensors file.
        digest: Digest of its bytes; see ``tensor_file.digest``.
    """

    variable: str
    slot: str = ""
    row_offset: _Count
    rows: _Count
    file: str
    tensor: str
    digest: str
    num_bytes: _Count
    part: _Count = 0


class BlockRecord(_Record):
    """Shards of one ps that share a lock.

    Attributes:
        applied: Task -> (generation, sequence) of its last push that is in all of these values.
            Small shards were copied at that moment, large ones from then on, in ranges of rows.
    """

    ps: _Count
    shards: tuple[str, ...]
    applied: dict[str, tuple[int, int]] = {}


class CutRecord(_Record):
    """A record of the moment of all ps that a checkpoint is of.

    Attributes:
        number: Number of the cut in its job.
        workers: Task -> its generation.
        shares: Marks of each share, in order: task -> (number of its last push to any share, as
            that share was told; number of its last push to that share, outside closures).
    """

    number: _Count
    workers: dict[str, _Count] = {}
    shares: tuple[dict[str, tuple[_Count, _Count]], ...] = ()


class BaseRecord(_Record):
    """The whole checkpoint without which a delta cannot be read.

    Attributes:
        checkpoint: Name of its directory, beside that of the delta.
        digest: Digest of its manifest.
        parts: Table -> parts of which the delta has only what changed.
        rows: Variable -> its rows ``[start, stop)`` of which the delta has only what changed.
    """

    checkpoint: str
    digest: str
    parts: dict[str, tuple[_Count, ...]] = {}
    rows: dict[str, tuple[tuple[_Count, _Count], ...]] = {}


class FileRecord(_Record):
    """A file of tensors.

    Attributes:
        num_bytes: Size of the whole file. Unit: bytes.
        header_bytes: Size of its length field and its header. Unit: bytes.
        header_digest: Digest of these two.
    """

    num_bytes: _Count
    header_bytes: _Count
    header_digest: str


class Manifest(_Record):
    """Contents of ``manifest.json``.

    Attributes:
        version: 1: written before manifests had digests; its files are checked by arrays alone. 3:
            a delta, which older programs would take for a whole checkpoint.
        global_step: Worker steps applied.
        final: The job was complete; an evaluator ends after this one.
        blocks: Pushes that the values of each block have in them.
        cut: Moment of all ps that it is of; None: ranges of rows are of different moments.
        places: Positions of iterators and states of random generators, by name.
        tables: Growing tables by name.
        base: The whole checkpoint of which this is a delta; None: this one is whole.
    """

    format: Literal["ropewalk-checkpoint"] = "ropewalk-checkpoint"
    version: Literal[1, 2, 3] = 2
    global_step: _Count
    final: bool = False
    saved_at: str = ""
    ropewalk: str = ""
    variables: dict[str, VariableRecord]
    tensors: tuple[TensorRecord, ...]
    files: dict[str, FileRecord] = {}
    blocks: tuple[BlockRecord, ...] = ()
    cut: CutRecord | None = None
    places: dict[str, dict[str, Any]] = {}
    tables: dict[str, TableRecord] = {}
    base: BaseRecord | None = None

    @model_validator(mode="after")
    def _says_what_it_is(self) -> Self:
        if (self.base is not None) != (self.version == _DELTA):
            raise ValueError(f"version {self.version} does not fit its base")
        return self


def manifest_bytes(manifest: Manifest, most_bytes: int = MAX_MANIFEST_BYTES) -> bytes:
    """Write a manifest as it is stored: JSON, the digest first.

    Args:
        manifest: The manifest.
        most_bytes: Size up to which it is read back.

    Raises:
        LimitExceededError: It is larger than is read back.
    """
    rest = manifest.model_dump_json(indent=1).encode()[1:]  # after the brace
    if len(rest) + _HEAD_BYTES > most_bytes:
        raise LimitExceededError(
            f"a checkpoint of {len(manifest.tensors)} pieces has a manifest of {len(rest)} bytes, "
            f"at most {most_bytes} are read back: have fewer and larger variables, or "
            "fewer ps",
            value=len(rest),
            limit=most_bytes,
        )
    return _BEGINS + digest(rest).encode() + _THEN + rest


def may_be_delta(text: bytes) -> bool:
    """Return whether a manifest may be that of a delta, and is to be parsed for its base: most have
    none.
    """
    return b'"version": %d,' % _DELTA in text[:_HEAD_BYTES]


def parse_manifest(text: bytes, *, path: str) -> Manifest:
    """Read a manifest.

    Raises:
        CheckpointError: It was altered or truncated, or is foreign or of another version.
    """
    verified = text.startswith(_BEGINS)
    if verified:
        begin = len(_BEGINS) + DIGEST_CHARS
        stated, then, rest = text[len(_BEGINS) : begin], text[begin : begin + 2], text[begin + 2 :]
        if then != _THEN or digest(rest).encode() != stated:
            raise CheckpointError(
                f"{path} was altered or is truncated: its {len(rest)} bytes have the digest "
                f"{digest(rest)}, it says {stated.decode(errors='replace')}",
                path=path,
            )
    try:
        manifest = Manifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise CheckpointError(
            f"{path} is no manifest of a Ropewalk checkpoint: {where}: {problem['msg']}. "
            "It is truncated or foreign; remove its directory, or name another model_dir",
            path=path,
        ) from error
    if manifest.version > 1 and not verified:
        raise CheckpointError(f"{path} was altered: its digest is missing", path=path)
    _check_files(manifest, path)
    return manifest


def _check_files(manifest: Manifest, path: str) -> None:
    base = [manifest.base.checkpoint] if manifest.base is not None else []
    for name in [*base, *(record.file for record in manifest.tensors)]:
        try:
            plain_name(name)
        except RefusedError as error:
            raise CheckpointError(f"{path}: {error}", path=path) from error
    for record in manifest.tensors:
        if manifest.version > 1 and record.file not in manifest.files:
            raise CheckpointError(f"{path} has no digest of {record.file}", path=path)


# -- The part of a checkpoint that one ps saved, and sends to the chief ------------------------


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A shard as it was saved. Small shards with the same ``block`` were copied at one moment.

    Attributes:
        since_base: Only its rows that changed since a whole checkpoint were saved.
    """

    shard: ShardDefinition
    version: int
    updates: int
    block: int
    since_base: bool = False


@dataclass(frozen=True, slots=True)
class SavedPart:
    """The part of a checkpoint that one ps saved.

    Attributes:
        tensors: Records of the tensors, in the order of the part's file.
        files: Digests of the files that the ps wrote, by name.
        shards: Every shard in it.
        applied: Last push, (generation, sequence), that is in all of a block's values, by block and
            task.
        global_step: Worker steps applied, as far as the ps knows.
        pushes: Applied before it began; later ones may be in the values or not.
    """

    tensors: tuple[TensorRecord, ...] = ()
    shards: tuple[SavedShard, ...] = ()
    applied: dict[int, dict[TaskId, tuple[int, int]]] = field(default_factory=dict)
    global_step: int = 0
    files: dict[str, FileRecord] = field(default_factory=dict)
    pushes: int = 0


# -- The manifest of a checkpoint that parameter servers have written, each its own part -------


def manifest_of_parts(
    parts: Sequence[SavedPart],
    global_step: int,
    *,
    final: bool,
    cut: CutRecord | None = None,
    base: tuple[str, str] | None = None,
) -> Manifest:
    """Make the manifest of a checkpoint whose values are written.

    Args:
        parts: Part of the checkpoint that each ps has saved, by its index.
        global_step: Global step of the checkpoint.
        final: Whether the job is complete.
        cut: Moment of all ps that it is of; None: ranges of rows are of different moments.
        base: Name of the whole checkpoint that a delta was asked for, and the digest of its
            manifest. Where no ps has left out what did not change, the checkpoint is whole.
    """
    variables: dict[str, VariableRecord] = {}
    tables: dict[str, TableRecord] = {}
    blocks: list[BlockRecord] = []
    for ps, part in enumerate(parts):
        labels: dict[int, list[str]] = {}
        for saved in part.shards:
            labels.setdefault(saved.block, []).append(saved.shard.label)
            variable, rule = saved.shard.variable, saved.shard.rule
            if variable.table is not None:
                tables[variable.name] = _table_record(saved.shard, variable.table)
                continue
            other = variables.get(variable.name)
            variables[variable.name] = VariableRecord(
                shape=variable.shape,
                dtype=variable.dtype.name,
                trainable=variable.trainable,
                updates=max(saved.updates, other.updates if other is not None else 0),
                rule=rule.model_dump(mode="json") if rule is not None else None,
            )
        for block, names in labels.items():
            applied = {str(task): mark for task, mark in part.applied.get(block, {}).items()}
            blocks.append(BlockRecord(ps=ps, shards=tuple(names), applied=applied))
    whole = Manifest(
        global_step=global_step,
        final=final,
        saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ropewalk=own_versions().ropewalk,
        variables=variables,
        tensors=tuple(record for part in parts for record in part.tensors),
        files={name: record for part in parts for name, record in part.files.items()},
        blocks=tuple(blocks),
        cut=cut,
        tables=tables,
    )
    record = _base_record(parts, *base) if base is not None else None
    if record is None or not (record.parts or record.rows):
        return whole
    return whole.model_copy(update={"base": record, "version": 3})


def _base_record(parts: Sequence[SavedPart], checkpoint: str, digest: str) -> BaseRecord:
    tables: dict[str, list[int]] = {}
    rows: dict[str, list[tuple[int, int]]] = {}
    for saved in (saved for part in parts for saved in part.shards if saved.since_base):
        shard, name = saved.shard, saved.shard.variable.name
        if shard.variable.table is not None:
            tables.setdefault(name, []).append(shard.part)
        else:
            rows.setdefault(name, []).append((shard.row_offset, shard.row_offset + shard.rows))
    return BaseRecord(
        checkpoint=checkpoint,
        digest=digest,
        parts={name: tuple(sorted(parts)) for name, parts in tables.items()},
        rows={name: tuple(sorted(ranges)) for name, ranges in rows.items()},
    )


def _table_record(shard: ShardDefinition, options: RowOptions) -> TableRecord:
    max_rows, dim = shard.variable.shape
    return TableRecord(
        max_rows=max_rows,
        dim=dim,
        dtype=shard.variable.dtype.name,
        parts=shard.num_parts,
        rule=options.rule.model_dump(mode="json"),
    )


# -- Whether a checkpoint is of one moment of all ps, by what each of them has written down ----


def pushes_of(manifest: Manifest) -> dict[str, int]:
    """Return the number of each worker's last push in a checkpoint of a cut; nothing if it is of
    none.
    """
    cut = manifest.cut
    if cut is None or not cut.shares:
        return {}
    return {task: pushes for task, (pushes, _) in sorted(cut.shares[0].items())}


def contradictions(manifest: Manifest) -> list[str]:
    """List contradictions in the records of a cut, for people; nothing if there are none.

    All shares have to have been told one number by each worker, and no block may have a push of
    that worker beyond its last one to that share.
    """
    cut = manifest.cut
    if cut is None:
        return []
    problems = [problem for share in range(len(cut.shares)) for problem in _of_share(cut, share)]
    for block in manifest.blocks:
        problems += _of_block(cut, block)
    return problems


def _of_share(cut: CutRecord, share: int) -> list[str]:
    first, marks = cut.shares[0], cut.shares[share]
    if marks.keys() != cut.workers.keys():
        return [
            f"share {share} has marks of {_listed(marks)}, the cut is of {_listed(cut.workers)}"
        ]
    return [
        f"{task} marked its push {first[task][0]} on share 0, and {marks[task][0]} on share {share}"
        for task in sorted(marks)
        if marks[task][0] != first[task][0]
    ]


def _of_block(cut: CutRecord, block: BlockRecord) -> list[str]:
    if block.ps >= len(cut.shares):
        return [f"there are values of share {block.ps}, and no marks of it"]
    problems = []
    for task, (generation, sequence) in sorted(block.applied.items()):
        if cut.workers.get(task) != generation:
            continue  # a task, or a life of it, that had ended
        _, last = cut.shares[block.ps][task]
        if sequence > last:
            problems.append(
                f"{', '.join(block.shards[:3])} of share {block.ps} has push {sequence} of {task}, "
                f"beyond its mark at {last}"
            )
    return problems


def _listed(tasks: Iterable[str]) -> str:
    return ", ".join(sorted(tasks)) or "no task"
