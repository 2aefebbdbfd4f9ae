"""``ropewalk local``."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from ...core import annexes
from ...core.errors import ConfigurationError
from ...core.setting_groups import Concern
from ...core.settings import DECIDED, Settings, settings_of
from ...worker.process.program import Program, find_program
from ..options import (
    SCRIPT_LAST,
    is_said,
    program_arguments,
    refuse_said,
    settings_options,
    take_settings,
)
from ..screen.plain import echo

if TYPE_CHECKING:
    from ..local.cluster import LocalRoles

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OF_ONE_JOB = (
    "chief", "evaluator", "coordinator", "restarts", "dry_run", "plain", "gpus_per_worker",
)  # fmt: skip
_SAVE_EVERY_S = 2.0  # a run at a desk is short, and Ctrl-C frequent


class _CountOrAuto(click.ParamType[int | str]):
    """A number of workers, or ``auto``."""

    name = "integer|auto"

    def convert(
        self, value: int | str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Read it."""
        return value if value == "auto" else click.IntRange(0)(value, param, ctx)


def _count_option(name: str, default: int, about: str) -> Callable[[_Command], _Command]:
    return click.option(
        name, type=click.IntRange(0), default=default, show_default=True, help=about
    )


@click.command("local", context_settings=SCRIPT_LAST)
@program_arguments(required=False)
@click.option(
    "--job",
    "job_file",
    metavar="FILE",
    help="A job file (docs/job-file.md) instead of SCRIPT; flags here win over what it says.",
)
@click.option("--dry-run", is_flag=True, help="With --job: say what would be started.")
@click.option(
    "--workers",
    type=_CountOrAuto(),
    default=1,
    show_default=True,
    help="Worker tasks; auto: as many as each task that runs SCRIPT can have GPUs of its own.",
)
@_count_option(
    "--ps", 1, "Parameter servers; 0: synchronous training (MultiWorkerMirroredStrategy)."
)
@click.option(
    "--chief/--no-chief",
    default=True,
    show_default=True,
    help="A chief task; without one worker 0 is the chief.",
)
@click.option(
    "--evaluator/--no-evaluator", default=False, show_default=True, help="An evaluator task."
)
@click.option(
    "--coordinator",
    is_flag=True,
    help="The chief alone runs SCRIPT; workers run what its ClusterCoordinator schedules.",
)
@click.option(
    "--standalone",
    is_flag=True,
    help="Run no SCRIPT, but a standalone cluster that waits for `ropewalk submit`, until Ctrl-C.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Of the standalone cluster; 0: any free one.",
)
@_count_option(
    "--restarts",
    0,
    "How often a chief that was killed is started again; the ps keep the variables meanwhile.",
)
@click.option(
    "--gpus-per-worker",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="GPUs of this machine for each task that runs SCRIPT.",
)
@click.option(
    "--plain", is_flag=True, help="Plain lines instead of a progress bar (default in a pipe)."
)
@settings_options(
    defaults={
        "model_dir": "a new folder in runs/",
        "save_every_s": f"{_SAVE_EVERY_S:g}, or 0 with --save-every-steps",
        "wait_for_workers": "-1",
    },
    hidden=[*settings_of(Concern.PLACE), *DECIDED],  # the launcher decides
    without=["standalone"],
)
def local_command(
    script: str | None,
    arguments: tuple[str, ...],
    module: bool,
    job_file: str | None,
    dry_run: bool,
    workers: int | str,
    ps: int,
    chief: bool,
    evaluator: bool,
    coordinator: bool,
    standalone: bool,
    port: int,
    restarts: int,
    gpus_per_worker: int,
    plain: bool,
    **flags: Any,
) -> None:
    """Run SCRIPT, or a job file, on a cluster of processes on this machine.

    What follows SCRIPT is the script's.
    """
    if standalone:
        workers = _workers_of_standalone(workers, script, job_file)
        sys.exit(_run_standalone(workers, ps, port, take_settings(flags)))
    refuse_said(["port"], "it is that of a standalone cluster, and belongs to --standalone")
    refuse_said(
        settings_of(Concern.STANDALONE), "it belongs to a standalone cluster, and to --standalone"
    )
    _refuse_decided(DECIDED)
    from ..local.cluster import LocalRoles

    if job_file is not None:
        refuse_said(["coordinator"], "the job file says whether it has one: `coordinator: true`")
        refuse_said(["gpus_per_worker"], "the job file says it: `resources.gpu` of a role")
        counts = _said_counts(workers, ps, chief, evaluator)
        _run_job_file(
            job_file, script, counts, flags, dry_run=dry_run, plain=plain, restarts=restarts
        )
    if script is None:
        raise ConfigurationError("what shall run? Give SCRIPT, or --job and a job file")
    if dry_run:
        raise ConfigurationError("--dry-run belongs to --job")
    cluster = _cluster(workers, LocalRoles(0, ps, chief, evaluator, coordinator, gpus_per_worker))
    cluster.check_restarts(restarts)
    program = find_program(script, module=module)
    settings = _for_a_desk(take_settings(flags), program)
    sys.exit(_run(cluster, program, arguments, settings, restarts, plain=plain))


def _cluster(workers: int | str, roles: "LocalRoles") -> "LocalRoles":
    """Add the workers to the other roles of a job.

    Raises:
        ConfigurationError: A job cannot have such roles.
    """
    from ..local.gpus import machines_gpus, workers_for_gpus

    if isinstance(workers, str):
        workers = workers_for_gpus(roles, machines_gpus())
    if not roles.chief and not workers:
        raise ConfigurationError("--no-chief needs at least one worker, which then acts as chief")
    if roles.coordinator and not (roles.chief and workers and roles.ps):
        raise ConfigurationError(
            "--coordinator needs a chief, at least one worker to run closures, and at least one ps "
            f"to hold the variables; this has {'a' if roles.chief else 'no'} chief, {workers} "
            f"workers and {roles.ps} ps"
        )
    return replace(roles, workers=workers)


def _run(
    cluster: "LocalRoles", program: "Program", arguments: Sequence[str], settings: Settings,
    restarts: int, *, plain: bool,
) -> int:  # fmt: skip
    """Run a job to its end, and show its result; returns the exit code."""
    from ..local.run import LocalJob
    from ..screen.standard_streams import choose_display

    display = choose_display(cluster.tasks(), plain=plain)
    resume = _command_to_resume(sys.argv[1:], settings.model_dir)
    try:
        job = LocalJob(cluster, program, arguments, settings, display, resume, restarts=restarts)
        with job.signals():
            result = job.run()
    finally:
        display.close()
    job.show_result(result)
    return result.exit_code


def _workers_of_standalone(workers: int | str, script: str | None, job_file: str | None) -> int:
    """Refuse what a cluster that waits for jobs has no use for; returns its number of workers."""
    refuse_said(_OF_ONE_JOB, "it belongs to one job, and --standalone waits for several")
    _refuse_decided(name for name, each in DECIDED.items() if not each.gateway_has_it)
    if script is not None or job_file is not None:
        raise ConfigurationError(
            f"--standalone waits for jobs, so leave out {script or '--job'} and send the "
            "program with `ropewalk submit`"
        )
    if isinstance(workers, str):
        raise ConfigurationError(
            "a standing cluster divides no GPUs among its workers: say how many, e.g. --workers 2"
        )
    return workers


def _run_standalone(workers: int, ps: int, port: int, settings: Settings) -> int:
    from ...worker.process.surroundings import handle_signals, set_up_logging

    set_up_logging(settings)
    service = annexes.the("standing_cluster", "service", "`ropewalk local --standalone`")
    cluster = service.LocalStandaloneCluster(workers, ps, f"127.0.0.1:{port}", settings)
    handle_signals(cluster.stop)
    cluster.start()
    echo(f"the cluster is at {cluster.address}; send it a program from this machine with\n")
    echo(f"    ropewalk submit SCRIPT --cluster {cluster.address}\n")
    echo("Ctrl-C ends it, and its jobs")
    return int(cluster.wait())


def _refuse_decided(names: Iterable[str]) -> None:
    """Refuse flags of settings that the launcher decides.

    Raises:
        ConfigurationError: The command line has one of them.
    """
    for name in sorted(names):
        refuse_said([name], DECIDED[name].why)


def _said_counts(workers: int | str, ps: int, chief: bool, evaluator: bool) -> dict[str, int | str]:
    """Collect counts by role, of those that the command line says itself."""
    values = {"workers": workers, "ps": ps, "chief": int(chief), "evaluator": int(evaluator)}
    roles = {"workers": "worker"}
    return {roles.get(name, name): value for name, value in values.items() if is_said(name)}


def _run_job_file(
    job_file: str,
    script: str | None,
    counts: Mapping[str, int | str],
    flags: dict[str, Any],
    *,
    dry_run: bool,
    plain: bool,
    restarts: int,
) -> NoReturn:
    """Run a job file, and exit as it does."""
    if script is not None:
        raise ConfigurationError(
            f"--job {job_file} says what runs; take {script} away, or write arguments of the "
            "program into the job file"
        )
    job_files = annexes.the("local", "jobfile", "`ropewalk local --job`")
    job = job_files.LocalJobFile(job_file, counts, flags)
    settings = _for_a_desk(job.settings, job.program)
    resume = _command_to_resume(sys.argv[1:], settings.model_dir)
    if dry_run:
        echo(job.render(settings), nl=False)
        sys.exit(0)
    sys.exit(job.run(settings, plain=plain, resume=resume, restarts=restarts))


def _for_a_desk(settings: Settings, program: Program) -> Settings:
    """Change the settings that are different for a local job, unless the user has said so.

    Raises:
        MissingExtraError: They ask for event files, and what writes them is not installed.
    """
    from ..local.cluster import default_model_dir

    for module in annexes.at("before_start"):
        module.check(settings)
    explicit, changes = settings.model_fields_set, dict[str, object]()
    if not explicit & {"save_every_s", "save_every_steps"}:
        changes["save_every_s"] = _SAVE_EVERY_S
    elif "save_every_s" not in explicit:
        changes["save_every_s"] = 0.0
    if not settings.model_dir:
        changes["model_dir"] = default_model_dir(program)
    return settings.model_copy(update=changes)


def _command_to_resume(arguments: Sequence[str], model_dir: str) -> str:
    """Write the command line that goes on in the same model directory; empty if this is another."""
    if arguments[:1] != ["local"]:
        return ""
    rest = list(arguments[1:])
    named = any(word.partition("=")[0] == "--model-dir" for word in rest)
    where = [] if named else ["--model-dir", model_dir]
    return shlex.join(["ropewalk", "local", *where, *rest])
