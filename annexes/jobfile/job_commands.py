"""``ropewalk job``, ``ropewalk compose`` and ``ropewalk slurm``.

Launchers have one interface: a job becomes documents, which can be shown or started. Rendering is
pure, so a dry run shows what a start would use, and tests compare documents. Local, compose, Slurm
and Kubernetes implement it.
"""

import json
import sys
from pathlib import Path
from typing import Any, Protocol

import click

from ...core.terminal import counted
from ...launch.screen.plain import echo
from .model import SAID_ELSEWHERE, JobFile


class Launcher(Protocol):
    """Starts jobs somewhere."""

    def render(self, job: JobFile) -> str:
        """Render what would be started, as text for people and for the launcher's own tools. Pure.

        Raises:
            ConfigurationError: The job lacks what this launcher needs.
        """
        ...

    def start(self, job: JobFile) -> int:
        """Start a job; an exit code. Local and compose wait for its end, the others hand it over.

        Raises:
            RopewalkError: It could not be started.
        """
        ...


def launch(launcher: Launcher, job: JobFile, *, dry_run: bool) -> tuple[int, str]:
    """Start a job, or render it; returns (exit code, text to show): of a dry run what would be
    started, else nothing.
    """
    if dry_run:
        return 0, launcher.render(job)
    return launcher.start(job), ""


# -- ``--job FILE``: which job file a command reads ---------------------------------------------

JOB_FILE = "ropewalk.yaml"


def job_option(command: Any) -> Any:
    """Add ``--job``, by default ``ropewalk.yaml`` here."""
    return click.option(
        "--job", "job_file", default=JOB_FILE, show_default=True, metavar="FILE",
        help="The job file.",
    )(command)  # fmt: skip


# -- The JSON Schema of the job file, by which editors complete and check it -------------------


_TEXTS = (
    "arguments", "environment", "cpu", "memory", "ephemeral_storage", "labels", "annotations",
    "time",
)  # fmt: skip


def job_schema() -> dict[str, Any]:
    """Make the schema, in draft 2020-12."""
    schema = JobFile.model_json_schema()
    parts = schema["$defs"]
    for name in SAID_ELSEWHERE:
        parts["JobSettings"]["properties"].pop(name, None)  # of an annex that is not here
    for part in (schema, *parts.values()):
        for name, field in part.get("properties", {}).items():
            if name in _TEXTS:
                _also_numbers(field)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ropewalk.yaml",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _also_numbers(field: dict[str, Any]) -> None:
    """Let an editor accept ``cpu: 2``: what is text is read as it is written."""
    for owner in (field, field.get("items"), field.get("additionalProperties")):
        if isinstance(owner, dict) and owner.get("type") == "string":
            owner["type"] = ["string", "number", "boolean"]


EXAMPLE = """\
# `ropewalk job schema > ropewalk.schema.json` makes the file that the next line names.
# yaml-language-server: $schema=ropewalk.schema.json
name: my-job
image: registry.example/my-job:1   # Kubernetes and compose; with Ropewalk and train.py in /app
program: train.py
arguments: [--epochs, 3]
roles:
  chief: {count: 1}
  ps: {count: 2, resources: {cpu: 2, memory: 4Gi}}
  worker: {count: 2, resources: {cpu: 4, memory: 4Gi}}
  evaluator: {count: 0}
storage: {size: 10Gi}              # or model_dir: s3://bucket/my-job
security: {mode: mtls}             # or token, insecure
settings: {save_every_s: 300}      # `ropewalk run --help` lists them
"""


@click.group("job")
def job_command() -> None:
    """Show an example of a job file, its schema for editors, or check one."""


@job_command.command("example")
def example_command() -> None:
    """Print a job file to begin with."""
    echo(EXAMPLE, nl=False)


@job_command.command("schema")
def schema_command() -> None:
    """Print the JSON Schema, by which editors complete and check a job file."""
    echo(json.dumps(job_schema(), indent=2))


@job_command.command("check")
@job_option
def check_command(job_file: str) -> None:
    """Say what is wrong with a job file, with line and column; or what it describes."""
    from .reading import read_job

    job = read_job(job_file)
    counts = ", ".join(f"{role.count} {name}" for name, role in job.present)
    echo(f"{job_file}: {job.name} has {counted(len(job.tasks), 'task')}: {counts}")


@click.group("compose")
def compose_command() -> None:
    """Run a job file in containers of this machine."""


@compose_command.command("render")
@job_option
def compose_render_command(job_file: str) -> None:
    """Print the compose file of a job; `docker compose -f - up` takes it."""
    from .compose import ComposeLauncher
    from .reading import read_job

    echo(ComposeLauncher(_folder(job_file)).render(read_job(job_file)), nl=False)


@compose_command.command("up")
@job_option
@click.option("--dry-run", is_flag=True, help="Print the compose file, and start nothing.")
def compose_up_command(job_file: str, dry_run: bool) -> None:
    """Start a job with `docker compose`, show its output, and end as its chief did."""
    from .compose import ComposeLauncher
    from .reading import read_job

    launcher = ComposeLauncher(_folder(job_file))
    code, text = launch(launcher, read_job(job_file), dry_run=dry_run)
    echo(text, nl=False)
    sys.exit(code)


@click.group("slurm")
def slurm_command() -> None:
    """Run a job file under Slurm."""


@slurm_command.command("render")
@job_option
def slurm_render_command(job_file: str) -> None:
    """Print the batch script of a job."""
    from .reading import read_job
    from .slurm import SlurmLauncher

    echo(SlurmLauncher(_folder(job_file)).render(read_job(job_file)), nl=False)


@slurm_command.command("submit")
@job_option
@click.option("--dry-run", is_flag=True, help="Print the batch script, and submit nothing.")
def slurm_submit_command(job_file: str, dry_run: bool) -> None:
    """Hand a job to sbatch, and print its number."""
    from .reading import read_job
    from .slurm import SlurmLauncher

    job = read_job(job_file)
    launcher = SlurmLauncher(_folder(job_file))
    _, text = launch(launcher, job, dry_run=dry_run)
    echo(text, nl=False)
    if not dry_run:
        number = launcher.job_id
        echo(
            f"submitted as {number}; its output goes to {job.name}-{number}.log, and `squeue --job "
            f"{number}` shows its state"
        )


def _folder(job_file: str) -> Path:
    return Path(job_file).parent
