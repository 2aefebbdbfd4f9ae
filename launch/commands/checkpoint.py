"""``ropewalk checkpoint verify``: whether a checkpoint is whole, and of one moment."""

import click

from ...core.errors import CheckpointError
from ...core.showing import counted
from ..screen.echo import echo


@click.group("checkpoint")
def checkpoint_group() -> None:
    """Look at the checkpoints of a job."""


@checkpoint_group.command("verify")
@click.argument("checkpoint")
def verify_command(checkpoint: str) -> None:
    """Read all of CHECKPOINT and check it; changes nothing.

    CHECKPOINT is one, or a model directory: then it is the newest. Every digest is checked, those
    of a delta's whole checkpoint included, and that what each ps wrote down fits one moment of all
    of them. Ends with 4 if it is damaged.
    """
    from ...core.checkpoint import CheckpointReader, latest_checkpoint
    from ...core.checkpoint.manifest import contradictions, pushes_of

    newest = latest_checkpoint(checkpoint)
    reader = CheckpointReader(newest.path if newest is not None else checkpoint)
    reader.verify()
    manifest = reader.manifest
    size = sum(record.num_bytes for record in manifest.files.values())
    final = ", final" if manifest.final else ""
    count = len(manifest.variables) + len(manifest.tables)
    echo(f"{reader.path}: whole, {counted(count, 'variable')}, {size} bytes")
    echo(f"global step {manifest.global_step}{final}")
    if reader.base is not None:
        echo(f"what changed since {reader.base.path}, which is whole, too")
    if manifest.cut is None:
        echo("not of one moment: ranges of rows are as they were when they were copied")
        return
    if wrong := contradictions(manifest):
        raise CheckpointError(
            f"{reader.path} is not of one moment, though it says so: {'; '.join(wrong)}",
            path=reader.path,
        )
    echo(f"one moment of {counted(len(manifest.cut.shares), 'share')} (cut {manifest.cut.number})")
    for task, pushes in pushes_of(manifest).items():
        echo(f"  {task}: all pushes up to {pushes}, none beyond")
