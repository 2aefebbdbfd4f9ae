"""``ropewalk tensorboard``: TensorBoard on a job's event files."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from ...core.errors import ConfigurationError, MissingExtraError
from ...core.settings import read_environment
from ...launch.screen.plain import echo

_RUNS = Path("runs")  # where `ropewalk local` makes model directories
_EVENT_FILES = "**/*tfevents*"


@click.command(
    "tensorboard", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
@click.argument("model_dir", required=False)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to serve at. TensorBoard asks nobody who they are: on any other than loopback "
    "everyone who reaches the port sees the runs.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=6006, show_default=True)
@click.pass_context
def tensorboard_command(
    context: click.Context, model_dir: str | None, host: str, port: int
) -> None:
    """Show the event files in MODEL_DIR with TensorBoard: the job's own and the program's.

    Without MODEL_DIR: of ROPEWALK_MODEL_DIR, or of the newest job in runs/. Other options are
    TensorBoard's, such as --reload_interval=5.
    """
    folder = _folder(model_dir)
    if find_spec("tensorboard") is None:
        raise MissingExtraError(
            "TensorBoard is not installed: pip install 'ropewalk[tensorboard]'",
            module="tensorboard",
            extra="tensorboard",
        )
    if "://" not in folder and next(Path(folder).glob(_EVENT_FILES), None) is None:
        echo(
            f"there are no event files in {folder} yet: a job writes its own with --tensorboard, a "
            "program with rw.summary",
            err=True,
        )
    arguments = ["--logdir", folder, "--host", host, "--port", str(port), *context.args]
    sys.stdout.flush()
    # In place of this process, so that signals and the exit code are TensorBoard's.
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *arguments])  # noqa: S606


def _folder(model_dir: str | None) -> str:
    """Choose the folder to show.

    Raises:
        ConfigurationError: None was named, and there is none; or what was named is none.
    """
    named = model_dir or read_environment("ROPEWALK_MODEL_DIR")
    if named:
        if "://" not in named and not Path(named).is_dir():
            raise ConfigurationError(
                f"{named} is no folder (looked in {Path.cwd()}); give the model directory of a job",
                path=named,
            )
        return named
    runs = [path for path in _RUNS.glob("*") if path.is_dir()]
    if not runs:
        raise ConfigurationError(
            f"which job? There is none in {Path.cwd() / _RUNS}; give its model directory"
        )
    return str(max(runs, key=lambda path: path.stat().st_mtime))
