"""``ropewalk k8s``: render, apply, status, list, logs, scale and delete a job on Kubernetes."""

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...core.errors import ConfigurationError
from ...core.exit_codes import ExitCode
from ...core.terminal import terminal_line
from ...launch.cli import LazyGroup
from ...launch.options import refuse_said
from ...launch.screen.display import new_table
from ...launch.screen.plain import echo
from ...launch.screen.status_table import human_seconds
from ..jobfile.job_commands import JOB_FILE, job_option
from .job_status import ClusterStatus, TaskLine
from .names import Form
from .observing import JobRow

if TYPE_CHECKING:
    from ..jobfile.model import JobFile
    from .api import KubernetesApi
    from .code import ShippedCode
    from .job_status import ClusterStatus

_LOOK, _CHANGE = "annexes.kubernetes.k8s_commands", "annexes.kubernetes.k8s_commands"
_COMMANDS = {
    "apply": f"{_CHANGE}:apply_command",
    "delete": f"{_CHANGE}:delete_command",
    "list": f"{_LOOK}:list_command",
    "logs": f"{_LOOK}:logs_command",
    "render": f"{_CHANGE}:render_command",
    "scale": f"{_CHANGE}:scale_command",
    "status": f"{_LOOK}:status_command",
}


@click.group("k8s", cls=LazyGroup, members=_COMMANDS)
def k8s_command() -> None:
    """Run a job file on Kubernetes: no operator, no definitions, plain objects.

    Needs the extra `k8s` (pip install 'ropewalk[k8s]'); `render` works without.
    """


json_option = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
_context_option = click.option("--context", default="", help="Of the kubeconfig; else the current.")
_namespace_option = click.option(
    "--namespace", "-n", default="", help="Else the job file's, else the context's."
)
_name_option = click.option("--name", default="", help="Name of the job, instead of a job file.")


def where_options(command: Any) -> Any:
    """Add the options that say which cluster and namespace."""
    return _namespace_option(_context_option(command))


Found = Callable[[], "tuple[KubernetesApi, str]"]
"""Gives the API and the name of the job that a command is about."""


def of_job(command: Callable[..., None]) -> Any:
    """Give a command what finds its job, and the options that say which: --name, else the job
    file.
    """

    @job_option
    @_name_option
    @where_options
    @functools.wraps(command)
    def of_that_job(*, job_file: str, name: str, context: str, namespace: str, **more: Any) -> None:
        command(functools.partial(_find_job, job_file, name, context, namespace), **more)

    return of_that_job


def _find_job(
    job_file: str, name: str, context: str, namespace: str
) -> "tuple[KubernetesApi, str]":
    if name:
        refuse_said(["job_file"], "--name says which job")
        return connect_api(context, namespace, None), name
    from ..jobfile.reading import read_job

    job = read_job(job_file)
    return connect_api(context, namespace, job), job.name


def connect_api(context: str, namespace: str, job: "JobFile | None") -> "KubernetesApi":
    """Connect to the API of a context; the namespace is the flag's, else the job file's."""
    from .api import connect

    said = job.kubernetes.namespace if job is not None else ""
    return connect(context, namespace or said)


# -- View of the status of a job on Kubernetes: for people a table, for programs JSON ----------


Json = dict[str, Any]

_WIDE = 120
PHASE_STYLES = {"Running": "green", "Done": "green", "Failed": "red"}
_STYLES = {**PHASE_STYLES, "OOMKilled": "red", "Missing": "red"}


def status_json(status: ClusterStatus) -> str:
    """Write the status as an object in one line."""
    return json.dumps(asdict(status))


def status_view(status: ClusterStatus, width: int) -> Group:
    """Make a line for the job, and a table of its tasks; below 120 columns without pods and
    nodes.
    """
    wide = width >= _WIDE
    more = ("pod", "node") if wide else ()
    names = ("task", "state", "age", "restarts", *more, "reason")
    table = new_table(*names, right=("age", "restarts"))
    for line in status.tasks:
        style = _STYLES.get(line.state, "yellow")
        table.add_row(
            line.task,
            Text(line.state, style),
            "" if line.age_s is None else human_seconds(line.age_s),
            str(line.restarts or ""),
            *((line.pod, line.node) if wide else ()),
            _reason(line),
        )
    return Group(Text(headline(status), style="bold"), *([table] if status.tasks else []))


def headline(status: ClusterStatus) -> str:
    """Write a line such as ``digits: Running: step 1200 of 3000``."""
    parts = [status.name, status.phase, status.reason or status.progress.words]
    return ": ".join(filter(None, parts))


def _reason(line: TaskLine) -> str:
    return f"{line.reason} → {line.remedy}" if line.remedy else line.reason


def rows_json(rows: Sequence[JobRow]) -> str:
    """Write a list in one line."""
    return json.dumps([asdict(row) for row in rows])


def rows_view(rows: Sequence[JobRow]) -> Table:
    """Make a table, a line for each job."""
    table = new_table("job", "phase", "running", "age", "step", "steps/s", "checkpoint", "reason")
    for row in rows:
        progress = row.progress
        goal = f"/{progress.goal}" if progress.goal else ""
        table.add_row(
            row.name,
            Text(row.phase, PHASE_STYLES.get(row.phase, "yellow")),
            f"{row.running}/{row.tasks}",
            human_seconds(row.age_s),
            f"{progress.step}{goal}",
            progress.rate,
            progress.checkpoint_step,
            row.reason,
        )
    return table


@click.command("status")
@of_job
@click.option("--watch", "-w", is_flag=True, help="Until the job is over; exits as the job did.")
@json_option
def status_command(find: Found, watch: bool, as_json: bool) -> None:
    """Show every task: its state, since when, and why it does not run.

    What has happened is read from the objects of the job and their events, never from logs. With
    --watch the exit code is 0 for a job that is done, and that of the failed task otherwise.
    """
    from .observing import follow_status, observe

    api, name = find()
    if not watch:
        status = observe(api, name)
        _show(status, as_json=as_json)
        if status.phase == "Absent":
            sys.exit(int(ExitCode.NOT_FOUND))
        return
    with _live(as_json=as_json) as show:
        status = follow_status(api, name, show)
    # Without an end there is no such job.
    sys.exit(int(ExitCode.NOT_FOUND) if status.exit_code is None else status.exit_code)


def _show(status: "ClusterStatus", *, as_json: bool) -> None:
    from ...launch.screen.display import TerminalConsole

    if as_json:
        echo(status_json(status))
        return
    # In a pipe lines are not cut, so that they can be searched.
    console = TerminalConsole(width=None if sys.stdout.isatty() else 1000)
    console.print(status_view(status, console.width))


@contextlib.contextmanager
def _live(*, as_json: bool) -> Iterator[Callable[["ClusterStatus"], None]]:
    """Show a status again and again: in a terminal in one place, else whenever it is another."""
    if as_json or not sys.stdout.isatty():
        shown: list[Any] = []

        def show(status: "ClusterStatus") -> None:
            key = (status.phase, [(t.task, t.state, t.reason, t.restarts) for t in status.tasks])
            if shown[-1:] != [key]:
                shown[:] = [key]
                _show(status, as_json=as_json)

        yield show
        return
    from rich.live import Live

    from ...launch.screen.display import TerminalConsole

    console = TerminalConsole()
    with Live(console=console, auto_refresh=False) as live:
        yield lambda status: live.update(status_view(status, console.width), refresh=True)


@click.command("list")
@where_options
@json_option
def list_command(context: str, namespace: str, as_json: bool) -> None:
    """List the jobs of a namespace: phase, tasks, and what their chiefs write of them.

    Step, rate and checkpoint are those of jobs whose file has `kubernetes: {status: true}`.
    """
    from ...launch.screen.display import TerminalConsole
    from .observing import list_jobs

    api = connect_api(context, namespace, None)
    rows = list_jobs(api)
    if as_json:
        echo(rows_json(rows))
    elif rows:
        console = TerminalConsole(width=None if sys.stdout.isatty() else 1000)
        console.print(rows_view(rows))
    else:
        echo(f"there are no jobs in namespace {api.namespace}")


@click.command("logs")
@click.argument("tasks", nargs=-1)
@of_job
@click.option("--follow", "-f", is_flag=True, help="Until the job is over.")
@click.option("--tail", default=-1, metavar="LINES", help="So many at the end; default: all.")
def logs_command(find: Found, tasks: tuple[str, ...], follow: bool, tail: int) -> None:
    """Show the logs of TASKS (worker, ps:0 …; default: all), each line behind its task.

    Streams that break are read on where they broke; every line is shown once. A log says nothing
    about success: the last line, on stderr, is the state of the job's objects.
    """
    from .logs import LogFollower, read_logs
    from .observing import observe

    api, name = find()

    def wanted(task: str) -> bool:
        return not tasks or task in tasks or task.partition(":")[0] in tasks

    lines = (
        LogFollower(api, name, wanted, tail).lines()
        if follow
        else read_logs(api, name, wanted, tail)
    )
    for line in lines:
        text = f"{line.task} | {line.text}" if not line.is_note else f"{line.task}: {line.text}"
        echo(terminal_line(text, colours=True), err=line.is_note)
    status = observe(api, name)
    echo(headline(status), err=True)
    if status.phase == "Absent":
        sys.exit(int(ExitCode.NOT_FOUND))


# -- The commands of ``ropewalk k8s`` that render, make, change and delete jobs ----------------


def _code_options(command: Any) -> Any:
    """Add ``--code`` and what it needs to know."""
    command = click.option(
        "--image-has-requirements",
        is_flag=True,
        help="The image has what requirements.txt or pyproject.toml of --code declare.",
    )(command)
    return click.option(
        "--code",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="The folder with the program, which is sent in ConfigMaps instead of being in the "
        "image; without what .gitignore and .ropewalkignore leave out.",
    )(command)


_form_option = click.option(
    "--as",
    "form",
    type=click.Choice([each.value for each in Form]),
    default=Form.OBJECTS.value,
    show_default=True,
    help="Plain objects, or one object of JobSet's controller or of Kubeflow Trainer.",
)


def _code(
    folder: Path | None, job: "JobFile", job_file: str, *, image_has_requirements: bool
) -> "ShippedCode | None":
    if folder is None:
        return None
    from .code import pack_code

    return pack_code(
        folder, job, job_file=Path(job_file), image_has_requirements=image_has_requirements
    )


@click.command("render")
@job_option
@_form_option
@_code_options
@click.option("--json", "as_json", is_flag=True, help="A List in JSON instead of YAML.")
def render_command(
    job_file: str, form: str, code: Path | None, image_has_requirements: bool, as_json: bool
) -> None:
    """Print the objects of a job; nothing is sent."""
    from ..jobfile.reading import read_job
    from ..jobfile.yaml_text import dump_documents
    from .manifests import manifests
    from .status_objects import check_rendered

    job = read_job(job_file)
    check_rendered(job, Form(form))
    sent = _code(code, job, job_file, image_has_requirements=image_has_requirements)
    documents = manifests(job, Form(form), sent)
    if as_json:
        echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    else:
        echo(dump_documents(documents), nl=False)


@click.command("apply")
@job_option
@_form_option
@_code_options
@where_options
@click.option("--dry-run", is_flag=True, help="Let the API check everything and change nothing.")
@click.option("--force", is_flag=True, help="Take over fields that others have set.")
@click.option(
    "--replace",
    is_flag=True,
    help="Delete the job's tasks first: for a job that is over, or that runs another program.",
)
@json_option
def apply_command(
    job_file: str,
    form: str,
    code: Path | None,
    image_has_requirements: bool,
    context: str,
    namespace: str,
    dry_run: bool,
    force: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Make or change the objects of a job (server-side apply).

    Every object is tried first: unless the API accepts all of them, nothing is changed. What the
    job's pods name and the namespace lacks is said on stderr.
    """
    from ..jobfile.reading import read_job
    from .applying import KubernetesLauncher

    job = read_job(job_file)
    sent = _code(code, job, job_file, image_has_requirements=image_has_requirements)
    api = connect_api(context, namespace, job)
    if job_file != JOB_FILE:
        api.where = changed(api.where, job_file=job_file)
    launcher = KubernetesLauncher(
        api,
        form=Form(form),
        code=sent,
        force=force,
        replace=replace,
        say=lambda text: echo(text, err=True),
    )
    done = launcher.apply(job, dry_run=dry_run)
    if as_json:
        echo(json.dumps([asdict(each) for each in done]))
        return
    for each in done:
        echo(f"{each.kind} {each.name} {each.what}")
    if not dry_run:
        echo(f"see it start: {api.where.command('status', job.name, '--watch')}")


@click.command("scale")
@click.argument("workers", type=click.IntRange(0), required=False)
@click.option(
    "--ps", type=click.IntRange(1), help="Have so many ps instead, in a job with ps_shares."
)
@of_job
@click.option("--timeout-s", default=300.0, show_default=True, help="How long to wait.")
@click.option("--dry-run", is_flag=True, help="Say who would leave or come, and change nothing.")
def scale_command(
    find: Found,
    workers: int | None,
    ps: int | None,
    timeout_s: float,
    dry_run: bool,
) -> None:
    """Have WORKERS workers from now on; those with the highest indices drain and leave.

    With --ps the ps hand over what they have before they leave, and training goes on.
    """
    from .scaling import read_ps_scale, read_scale, scale

    if (workers is None) is (ps is None):
        raise ConfigurationError("scale changes one number: give WORKERS, or --ps N")
    api, name = find()
    plan = read_ps_scale(api, name, ps) if ps is not None else read_scale(api, name, workers or 0)
    if dry_run:
        who = [f"{plan.role}:{index} would drain and leave" for index in plan.leaving]
        who += [f"{plan.role}:{index} would come" for index in plan.coming]
        echo("\n".join(who) or f"{name} has {plan.now} {plan.title} already")
        return
    scale(api, name, plan, echo, timeout_s=timeout_s)


@click.command("delete")
@of_job
@click.option("--checkpoints", is_flag=True, help="The claim with the checkpoints, too.")
@click.option(
    "--namespace-too",
    is_flag=True,
    help="Then the namespace and all that is in it, checkpoints too; refused where other pods run "
    "or others have claims.",
)
@click.option(
    "--timeout-s",
    default=180.0,
    show_default=True,
    help="With --namespace-too: how long pods may take to leave.",
)
@json_option
def delete_command(
    find: Found,
    checkpoints: bool,
    namespace_too: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Delete the objects of a job; its tasks save and leave. Checkpoints stay."""
    from .removal import delete_all, delete_with_namespace

    if not namespace_too:
        refuse_said(["timeout_s"], "nothing is waited for without --namespace-too")
    api, name = find()
    if namespace_too:
        done = delete_with_namespace(api, name, timeout_s)
    else:
        done = delete_all(api, name, checkpoints=checkpoints)
    if not done:
        api.check_namespace()
    if as_json:
        echo(json.dumps([asdict(each) for each in done]))
        return
    for each in done:
        kept = " (--checkpoints deletes it)" if each.what == "kept" else ""
        echo(f"{each.kind} {each.name} {each.what}{kept}")
    if not done:
        echo(f"there is nothing of {name} in namespace {api.namespace}")
