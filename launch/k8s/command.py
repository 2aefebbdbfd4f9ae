"""``windlass k8s``: render, apply, status, logs, scale and delete a job on Kubernetes."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ...core.exit_codes import ExitCode
from ...core.terminal import terminal_line
from ..options.job_file import job_option
from ..screen.echo import echo

if TYPE_CHECKING:
    from ..job.model import JobFile
    from .client import KubernetesApi
    from .job_status import ClusterStatus


@click.group("k8s")
def k8s_command() -> None:
    """Run a job file on Kubernetes: no operator, no definitions, plain objects.

    Needs `pip install 'windlass[k8s]'`; `render` works without.
    """


def _where(command: Any) -> Any:
    """Add the options that say which cluster and namespace."""
    command = click.option("--context", default="", help="Of the kubeconfig; else the current.")(
        command
    )
    return click.option(
        "--namespace", "-n", default="", help="Else the job file's, else the context's."
    )(command)


def _name_option(command: Any) -> Any:
    return click.option("--name", default="", help="Name of the job, instead of a job file.")(
        command
    )


def _json_option(command: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")(command)


@k8s_command.command("render")
@job_option
@click.option("--json", "as_json", is_flag=True, help="A List in JSON instead of YAML.")
def render_command(job_file: str, as_json: bool) -> None:
    """Print the objects of a job; nothing is sent."""
    from ..job.reading import read_job
    from ..job.yaml_output import dump_documents
    from .manifests import manifests
    from .status_objects import check_rendered

    job = read_job(job_file)
    check_rendered(job)
    documents = manifests(job)
    if as_json:
        echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    else:
        echo(dump_documents(documents), nl=False)


@k8s_command.command("apply")
@job_option
@_where
@click.option("--dry-run", is_flag=True, help="Let the API check everything and change nothing.")
@click.option("--force", is_flag=True, help="Take over fields that others have set.")
@click.option(
    "--replace",
    is_flag=True,
    help="Delete the job's tasks first: for a job that is over, or that runs another program.",
)
@_json_option
def apply_command(
    job_file: str,
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
    from ..job.reading import read_job
    from .launcher import KubernetesLauncher

    job = read_job(job_file)
    api = _api(context, namespace, job)
    launcher = KubernetesLauncher(
        api, force=force, replace=replace, say=lambda text: echo(text, err=True)
    )
    done = launcher.apply(job, dry_run=dry_run)
    if as_json:
        echo(json.dumps([{"kind": d.kind, "name": d.name, "what": d.what} for d in done]))
        return
    for each in done:
        echo(f"{each.kind} {each.name} {each.what}")
    if not dry_run:
        echo(f"see it start: {api.where.command('status', job.name, '--watch')}")


@k8s_command.command("status")
@job_option
@_name_option
@_where
@click.option("--watch", "-w", is_flag=True, help="Until the job is over; exits as the job did.")
@_json_option
def status_command(
    job_file: str, name: str, context: str, namespace: str, watch: bool, as_json: bool
) -> None:
    """Show every task: its state, since when, and why it does not run.

    What has happened is read from the objects of the job and their events, never from logs. With
    --watch the exit code is 0 for a job that is done, and that of the failed task otherwise.
    """
    from .operations import follow_status, observe

    api, name = _find(job_file, name, context, namespace)
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
    from ..screen.terminal import TerminalConsole
    from .status_view import status_json, status_view

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

    from ..screen.terminal import TerminalConsole
    from .status_view import status_view

    console = TerminalConsole()
    with Live(console=console, auto_refresh=False) as live:
        yield lambda status: live.update(status_view(status, console.width), refresh=True)


@k8s_command.command("list")
@_where
@_json_option
def list_command(context: str, namespace: str, as_json: bool) -> None:
    """List the jobs of a namespace: phase, tasks, and what their chiefs write of them.

    Step, rate and checkpoint are those of jobs whose file has `kubernetes: {status: true}`.
    """
    from ..screen.terminal import TerminalConsole
    from .listing import list_jobs, rows_json, rows_view

    api = _api(context, namespace, None)
    rows = list_jobs(api)
    if as_json:
        echo(rows_json(rows))
    elif rows:
        console = TerminalConsole(width=None if sys.stdout.isatty() else 1000)
        console.print(rows_view(rows))
    else:
        echo(f"there are no jobs in namespace {api.namespace}")


@k8s_command.command("logs")
@click.argument("tasks", nargs=-1)
@job_option
@_name_option
@_where
@click.option("--follow", "-f", is_flag=True, help="Until the job is over.")
@click.option("--tail", default=-1, metavar="LINES", help="So many at the end; default: all.")
def logs_command(
    tasks: tuple[str, ...],
    job_file: str,
    name: str,
    context: str,
    namespace: str,
    follow: bool,
    tail: int,
) -> None:
    """Show the logs of TASKS (worker, ps:0 …; default: all), each line behind its task.

    Streams that break are read on where they broke; every line is shown once. A log says nothing
    about success: the last line, on stderr, is the state of the job's objects.
    """
    from .log_following import LogFollower, read_logs
    from .operations import observe
    from .status_view import headline

    api, name = _find(job_file, name, context, namespace)

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


@k8s_command.command("scale")
@click.argument("workers", type=click.IntRange(0))
@job_option
@_name_option
@_where
@click.option("--timeout-s", default=300.0, show_default=True, help="How long to wait.")
@click.option("--dry-run", is_flag=True, help="Say who would leave or come, and change nothing.")
def scale_command(
    workers: int,
    job_file: str,
    name: str,
    context: str,
    namespace: str,
    timeout_s: float,
    dry_run: bool,
) -> None:
    """Have WORKERS workers from now on; those with the highest indices drain and leave."""
    from .operations import read_scale, scale

    api, name = _find(job_file, name, context, namespace)
    plan = read_scale(api, name, workers)
    if dry_run:
        who = [f"worker:{index} would drain and leave" for index in plan.leaving]
        who += [f"worker:{index} would come" for index in plan.coming]
        echo("\n".join(who) or f"{name} has {plan.now} workers already")
        return
    scale(api, name, plan, echo, timeout_s=timeout_s)


@k8s_command.command("delete")
@job_option
@_name_option
@_where
@click.option("--checkpoints", is_flag=True, help="The claim with the checkpoints, too.")
@click.option(
    "--namespace-too",
    is_flag=True,
    help="Then the namespace and all that is in it, checkpoints too; refused where other pods run.",
)
@click.option(
    "--timeout-s",
    default=180.0,
    show_default=True,
    help="With --namespace-too: how long pods may take to leave.",
)
@_json_option
def delete_command(
    job_file: str,
    name: str,
    context: str,
    namespace: str,
    checkpoints: bool,
    namespace_too: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Delete the objects of a job; its tasks save and leave. Checkpoints stay."""
    from .removal import delete_all, delete_with_namespace

    api, name = _find(job_file, name, context, namespace)
    if namespace_too:
        done = delete_with_namespace(api, name, timeout_s)
    else:
        done = delete_all(api, name, checkpoints=checkpoints)
    if not done:
        api.check_namespace()
    if as_json:
        echo(json.dumps([{"kind": d.kind, "name": d.name, "what": d.what} for d in done]))
        return
    for each in done:
        kept = " (--checkpoints deletes it)" if each.what == "kept" else ""
        echo(f"{each.kind} {each.name} {each.what}{kept}")
    if not done:
        echo(f"there is nothing of {name} in namespace {api.namespace}")


def _find(job_file: str, name: str, context: str, namespace: str) -> "tuple[KubernetesApi, str]":
    """The API and the name of a job: from --name, else from the job file."""
    if name:
        return _api(context, namespace, None), name
    from ..job.reading import read_job

    job = read_job(job_file)
    return _api(context, namespace, job), job.name


def _api(context: str, namespace: str, job: "JobFile | None") -> "KubernetesApi":
    from .client import connect

    said = job.kubernetes.namespace if job is not None else ""
    return connect(context, namespace or said)
