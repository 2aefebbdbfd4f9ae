"""``ropewalk submit``: run a program on a standalone cluster, from anywhere."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...cluster.spec import CHIEF
from ...core.errors import ConfigurationError, PeerLostError, RefusedError
from ...core.settings import Settings
from ...core.task import TaskId
from ...launch.local.watch import Speed, StatusWatch
from ...launch.options import caller_options, program_arguments, refuse_said, take_settings
from ...launch.processes.process import on_interrupts
from ...launch.screen.plain import echo
from ...launch.screen.standard_streams import choose_display
from .calls import GatewayClient, JobView, routes_to
from .chief_of_job import cluster_client, cluster_option

if TYPE_CHECKING:
    from ...launch.screen.plain import Display
    from .calls import GatewayClient

# -- Following a job of a standalone cluster from where its driver is: lines, progress, its end --


_WAIT_S = 1.0
_SAY_S = 3.0  # a shorter silence of the gateway is not worth a line


class Following:
    """Shows a job until it ends, through every loss of the connection.

    What is shown decides nothing: the job's end is what the gateway says of it. A job that is not
    detached lives as long as it is followed.

    Args:
        client: Client of the gateway.
        job: Id of the job.
        display: Display to which lines and progress go.
        settings: Settings with which the job's chief is asked for its progress.
        patience_s: Longest time that the gateway may be silent.
        retry_s: Pause after a question that it did not answer.
    """

    def __init__(
        self,
        client: GatewayClient,
        job: str,
        display: "Display",
        settings: Settings,
        patience_s: float = 60.0,
        *,
        retry_s: float = 0.5,
    ) -> None:
        self._retry_s = retry_s
        self._client = client
        self._job = job
        self._display = display
        self._settings = settings
        self._progress = contextlib.ExitStack()
        self._watch: StatusWatch | None = None
        self._speed = Speed()
        self._patience_s = patience_s
        self._offset = 0
        self._state = ("", "")
        self._interrupts = 0
        self._told = 0  # of the interrupts, to the gateway
        self._said = 0  # and to who looks on
        self._pause = threading.Event()

    def run(self) -> JobView:
        """Follow the job to its end.

        Raises:
            PeerLostError: The gateway was silent for too long.
            RefusedError: It knows no such job.
        """
        with self._progress:
            return self._follow()

    def _follow(self) -> JobView:
        silent_since: float | None = None
        has_warned = False
        while True:
            self._pass_on_interrupts()
            try:
                news = self._client.follow(self._job, self._offset, wait_s=_WAIT_S, drives=True)
            except RefusedError as error:
                if not self._state[0]:
                    raise
                raise PeerLostError(
                    f"the cluster's chief at {self._client.address} has restarted and knows no job "
                    f"{self._job}, which ended with it. Submit it again; with --model it goes on "
                    "from its last checkpoint",
                    peer=self._client.address,
                ) from error
            except PeerLostError as error:
                now = time.monotonic()
                silent_since = silent_since or now
                # A person who asks twice and gets no answer wants to leave.
                if now - silent_since > self._patience_s or self._interrupts >= 2:
                    raise PeerLostError(
                        f"the gateway at {self._client.address} has not answered for "
                        f"{now - silent_since:.0f} s: {error.message}. What the job does now is "
                        f"not known; `ropewalk attach {self._job}` goes on from here",
                        peer=self._client.address,
                    ) from error
                if not has_warned and now - silent_since > _SAY_S:
                    has_warned = True
                    self._display.say(
                        f"the gateway does not answer ({error.message}); still trying"
                    )
                self._pause.wait(self._retry_s)
                continue
            if has_warned:
                self._display.say("the gateway answers again")
            silent_since, has_warned = None, False
            if news.dropped and self._offset:
                self._display.say(f"{news.dropped} bytes of the log are no longer kept")
            for line in news.lines:
                self._display.line(line.task, line.text, is_error=line.is_error)
            self._offset = news.offset
            self._tell_state(news.job)
            self._show_progress(news.job)
            if news.job.has_ended and not news.lines:
                return news.job

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM stop the job; a second Ctrl-C ends it at once."""

        def count(number: signal.Signals) -> None:  # noqa: ARG001
            self._interrupts += 1

        with on_interrupts(count):
            yield

    def _show_progress(self, job: JobView) -> None:
        if self._watch is None and job.state == "running" and CHIEF in job.cluster:
            self._progress.enter_context(routes_to(self._client, job))
            self._watch = StatusWatch(job.cluster[CHIEF][0], self._settings)
            self._progress.callback(self._watch.stop, 2.0)
            self._watch.start()
        status = self._watch.last if self._watch is not None else None
        if status is not None and job.state == "running":
            self._display.progress(status, self._speed.of(status))

    def _pass_on_interrupts(self) -> None:
        while self._told < min(self._interrupts, 2):
            kill = self._told == 1
            if self._said == self._told:
                self._said += 1
                self._display.say(
                    "ending the job at once"
                    if kill
                    else "saving and stopping; again ends it at once"
                )
            try:
                self._client.stop(self._job, "its driver asked for it", kill=kill)
            except PeerLostError:
                return  # it is told when the gateway answers again
            self._told += 1

    def _tell_state(self, job: JobView) -> None:
        state = job.state, job.reason
        if state == self._state:
            return
        self._state = state
        if job.state in ("queued", "stopping"):
            self._display.say(f"{job.id} is {job.state}: {job.reason or 'it begins soon'}")
        elif job.state == "running" and not job.reason:
            self._display.say(f"{job.id} runs as {_counted(job)}")


def _counted(job: JobView) -> str:
    counts: dict[str, int] = {}
    for task in job.tasks:
        counts[task.type] = counts.get(task.type, 0) + 1
    return ", ".join(f"{count} {role}" for role, count in counts.items())


def tasks_of(job: JobView) -> list[TaskId]:
    """List the tasks that lines may come from, for the width of a display."""
    return [*job.tasks] or [TaskId("worker", 10)]


_PATIENCE_S = 30.0  # with a gateway that has just taken the package
_LARGE_BYTES = 4 * 1024 * 1024


@click.command("submit")
@program_arguments(required=True)
@cluster_option
@click.option("--workers", type=click.IntRange(0), help="Worker tasks. [default: one per node]")
@click.option("--ps", type=click.IntRange(0), help="Parameter servers. [default: one per node]")
@click.option(
    "--gpus-per-worker",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="GPUs that each worker alone has, and a chief that runs SCRIPT; 0: tasks see none.",
)
@click.option(
    "--coordinator",
    is_flag=True,
    help="The chief alone runs SCRIPT; workers run what its ClusterCoordinator schedules.",
)
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder that is sent, without what .gitignore leaves out. [default: the current one, "
    "or SCRIPT's if that is not in it]",
)
@click.option(
    "--model",
    help="Folder of the model below the cluster's --model-dir: a job goes on from the last "
    "checkpoint there. [default: a new one, called as the job]",
)
@click.option("--name", help="Of the job, for people. [default: SCRIPT's]")
@click.option("--detach", is_flag=True, help="Leave the job running, and return when it is sent.")
@click.option(
    "--grace-s", type=click.FloatRange(1, 86_400), default=30.0, show_default=True,
    help="Without --detach the job ends when nothing was heard of this command for so long.",
)  # fmt: skip
@click.option("--set", "said", multiple=True, metavar="NAME=VALUE", help="A setting of the tasks.")
@click.option("--plain", is_flag=True, help="Plain lines instead of colours.")
@caller_options
def submit_command(
    script: str,
    arguments: tuple[str, ...],
    module: bool,
    cluster: str,
    workers: int | None,
    ps: int | None,
    gpus_per_worker: int,
    coordinator: bool,
    project: Path | None,
    model: str | None,
    name: str | None,
    detach: bool,
    grace_s: float,
    said: tuple[str, ...],
    plain: bool,
    **flags: Any,
) -> None:
    """Run SCRIPT on the standalone cluster whose chief is at --cluster.

    The project folder is sent there, SCRIPT runs as the chief and the workers of a job, and its
    lines and its result come back here. Ctrl-C stops the job. What follows -- is the script's.
    """
    from ...proto.v1 import gateway_pb2
    from ...shipping import pack
    from .job import ALL, new_id
    from .versions import own_environment

    if detach:
        refuse_said(["grace_s", "plain"], "with --detach nothing is followed from here")
    settings = take_settings(flags)
    folder, program = _program(script, project, module=module)
    name = name or (script.partition(":")[0] if module else Path(script).stem)
    package = pack(folder)
    request = gateway_pb2.SubmitRequest(
        id=new_id(name),
        name=name,
        digest=package.digest,
        program=program,
        arguments=arguments,
        workers=ALL if workers is None else workers,
        ps=ALL if ps is None else ps,
        coordinator=coordinator,
        detached=detach,
        grace_s=grace_s,
        settings=_settings(said),
        environment=own_environment(),
        model=model or "",
        gpus_per_worker=gpus_per_worker,
    )
    with cluster_client(cluster, settings) as client:
        with _sending(package.size) as on_progress:
            client.put_package(package.digest, package.data, on_progress)
        job = client.submit(request, _PATIENCE_S)
        echo(
            f"job {job.id}: {package.files} files, {package.size / 1024:.0f} KiB, "
            f"package {package.digest[:12]}",
            err=True,
        )
        for warning in job.warnings:
            echo(f"ropewalk: {warning}", err=True)
        if detach:
            echo(job.id)
            echo(f"ropewalk attach {job.id} --cluster {cluster} shows it", err=True)
            return
        sys.exit(follow_to_end(client, job.id, settings, plain=plain))


@contextmanager
def _sending(size: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if it is a terminal, for packages that may take a while."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    from ...launch.screen.display import TerminalConsole

    columns = ("sending", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = TerminalConsole(stderr=True)
    hidden = size < _LARGE_BYTES or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        row = progress.add_task("sending", total=size)

        def show(held: int) -> None:
            progress.update(row, completed=held)

        yield show


def follow_to_end(client: "GatewayClient", job: str, settings: Settings, *, plain: bool) -> int:
    """Show a job until it ends, and its result; returns its exit code."""
    from .chief_of_job import result_table

    first = client.follow(job, 0, wait_s=0, drives=True).job
    display = choose_display(tasks_of(first), plain=plain)
    following = Following(client, first.id, display, settings)
    try:
        with following.signals():
            ended = following.run()
        if ended.reason:
            display.say(f"{ended.id}: {ended.reason}", is_error=bool(ended.exit_code))
        display.table(result_table(ended))
    finally:
        display.close()
    return int(ended.exit_code)


def _program(script: str, project: Path | None, *, module: bool) -> tuple[Path, list[str]]:
    """Find the folder to send, and the program in it."""
    here = Path.cwd()
    if module:
        return (project or here).resolve(), ["-m", script]
    if not Path(script).exists() and ":" in script:
        return (project or here).resolve(), [script]  # package.module:function
    path = Path(script).resolve()
    if not path.is_file():
        raise ConfigurationError(
            f"{script} does not exist (looked in {here}); give the path of a Python file, or -m "
            "and the name of a module",
            script=script,
        )
    folder = (project or (here if path.is_relative_to(here.resolve()) else path.parent)).resolve()
    if not path.is_relative_to(folder):
        raise ConfigurationError(
            f"{script} is not in the project {folder}, so it would not be sent; give --project a "
            "folder that holds it",
            script=script,
        )
    return folder, [str(path.relative_to(folder))]


def _settings(assignments: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in Settings.model_fields:
            raise ConfigurationError(
                f"--set {assignment}: give NAME=VALUE, with the name of a setting"
            )
        settings[name] = value
    return settings
