"""``ropewalk checkpoint verify`` and ``ropewalk export``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ...core import annexes
from ...core.errors import CheckpointError, ConfigurationError, RopewalkError
from ...core.terminal import counted
from ..screen.plain import echo

# -- ``ropewalk checkpoint verify``: whether a checkpoint is whole, and of one moment ----------


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


# -- ``ropewalk export``: a checkpoint as a file of another framework --------------------------

_FORMATS = ("safetensors", "torch", "orbax", "keras", "npy", "parquet")


@click.command("export")
@click.argument("checkpoint")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="File to write, for orbax a folder. Default: model, with the format's ending, here.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(_FORMATS),
    help="Default: as the ending of --output says (.safetensors, .pt, .pth, .keras; of --table "
    ".safetensors, .npy, .parquet), else safetensors.",
)
@click.option(
    "--model",
    metavar="MODULE:FUNCTION",
    help="Makes the Keras model that a .keras file holds beside the weights.",
)
@click.option(
    "--prefix", default="", help="Only variables that begin with it, under names without it."
)
@click.option(
    "--table",
    metavar="NAME",
    help="Write the rows of this embedding table, with their keys, and nothing else.",
)
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
def export_command(
    checkpoint: str,
    output: str | None,
    kind: str | None,
    model: str | None,
    prefix: str,
    table: str | None,
    overwrite: bool,
) -> None:
    """Write the variables of CHECKPOINT to one file that needs no Ropewalk.

    CHECKPOINT is one, or a model directory: then it is the newest. Optimizers' slots are left out,
    and so are tables that grow: --table NAME writes the rows of one.
    """
    from ...training.export_formats import SUFFIXES, format_of
    from ...training.exporting import export

    if table is not None:
        if model is not None or prefix:
            raise ConfigurationError("--table writes rows alone; leave --model and --prefix out")
        _export_table(checkpoint, table, output, kind, overwrite=overwrite)
        return
    if output is None:
        kind = kind or "safetensors"
        output = f"model{SUFFIXES.get(kind) or f'-{kind}'}"
    with _as_configuration(output):
        kind = format_of(Path(output), kind)
        if model is not None and kind != "keras":
            raise ConfigurationError(
                f"--model makes the model of a .keras file; a file of the format {kind} has none"
            )
        made = _make(model) if model is not None else None
        names = export(
            checkpoint, output, format=kind, model=made, prefix=prefix, overwrite=overwrite
        )
    _say(output, len(names), "variable", kind)


def _export_table(
    checkpoint: str, table: str, output: str | None, kind: str | None, *, overwrite: bool
) -> None:
    """Write the rows of one table."""
    use = "ropewalk export --table"
    files = annexes.the("files.exchange", "embedding", use)
    if output is None:
        kind = kind or "safetensors"
        output = f"{table.replace('/', '-')}.{kind}"
    with _as_configuration(output):
        kind = files.format_of_table(Path(output), kind)
        rows = files.export_table(checkpoint, table, output, format=kind, overwrite=overwrite)
    _say(output, rows, "row", kind)


@contextmanager
def _as_configuration(output: str) -> Iterator[None]:
    """Raise what wrong arguments cause as a mistake in them."""
    try:
        yield
    except FileExistsError as error:
        raise ConfigurationError(
            f"{output} is there already; give --overwrite to replace it, or another --output"
        ) from error
    except ValueError as error:
        if isinstance(error, RopewalkError):
            raise
        raise ConfigurationError(str(error)) from error


def _say(output: str, count: int, what: str, kind: str) -> None:
    echo(f"{output}: {counted(count, what)} ({kind})")


def _make(name: str) -> Any:
    """Make a model by ``module:function``; modules of the working directory come first.

    Raises:
        ConfigurationError: There is none.
    """
    module, _, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        make_model = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"--model {name}: {error}; name a function that makes the model, as module:function"
        ) from error
    return make_model()
