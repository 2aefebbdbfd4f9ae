"""``manifest.json``: what a checkpoint holds, and where. Written last; read first."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import CheckpointError


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class VariableRecord(_Record):
    """One whole variable, whatever its shards were when it was saved.

    Attributes:
        updates: How often its update rule had been applied; Adam's ``t``.
        rule: Fields of its update rule, or None.
    """

    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    updates: int = 0
    rule: dict[str, Any] | None = None


class TensorRecord(_Record):
    """One stored piece: rows ``[row_offset, row_offset + rows)`` of a variable or of a slot of it.

    Attributes:
        slot: Name of the slot variable; empty for the value itself.
        file: In the checkpoint's directory.
        tensor: Its name in the safetensors file.
        digest: Of its bytes; see ``tensor_file.digest``.
    """

    variable: str
    slot: str = ""
    row_offset: int
    rows: int
    file: str
    tensor: str
    digest: str
    num_bytes: int


class BlockRecord(_Record):
    """Shards of one ps that share a lock.

    Attributes:
        applied: Task -> (generation, sequence) of its last push that is in all of these values.
            Small shards were copied at that moment, large ones from then on, in ranges of rows.
    """

    ps: int
    shards: tuple[str, ...]
    applied: dict[str, tuple[int, int]] = {}


class Manifest(_Record):
    """Contents of ``manifest.json``.

    Attributes:
        global_step: Worker steps applied.
        final: The job was complete; an evaluator ends after this one.
        blocks: Which pushes are in which values.
        places: Where iterators and random generators were, by name.
    """

    format: Literal["windlass-checkpoint"] = "windlass-checkpoint"
    version: Literal[1] = 1
    global_step: int
    final: bool = False
    saved_at: str = ""
    windlass: str = ""
    variables: dict[str, VariableRecord]
    tensors: tuple[TensorRecord, ...]
    blocks: tuple[BlockRecord, ...] = ()
    places: dict[str, dict[str, Any]] = {}


def parse_manifest(text: bytes, *, path: str) -> Manifest:
    """Read a manifest.

    Raises:
        CheckpointError: It is truncated, foreign or of another version.
    """
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise CheckpointError(
            f"{path} is no manifest of a Windlass checkpoint: {where}: {problem['msg']}. "
            "It is truncated or foreign; remove its directory, or name another model_dir",
            path=path,
        ) from error
