"""``ropewalk stacks`` and ``ropewalk log-level``."""

import json
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from ...client.chief.calls import JobStatus
from ...core.errors import ConfigurationError, PeerLostError
from ...core.outside_text import parse_number
from ...core.settings import Settings
from ...core.task import TaskId
from ...launch.options import caller_options, take_settings
from ...launch.screen.plain import echo
from .asking import TaskAnswers, address_of, ask_all, chief_of
from .outside import SeenProcess, native_stacks, stacks_of, task_process, task_processes
from .stacks import (
    ThreadStack,
    as_text,
    from_json,
    place_of,
    what_holds_up,
    where_it_stands,
)

_STATUS_S = 5.0


@dataclass(frozen=True, slots=True)
class TaskStacks:
    """The stacks of one task, or why there are none.

    Attributes:
        task: Short name of the task.
        where: Process and machine.
        stacks: Stacks of the threads; empty: there are none.
        finding: Cause that holds the task up, or why it did not answer; empty: nothing is known.
        native: Stacks with those of C; empty: they were not asked for.
    """

    task: str
    where: str
    stacks: Sequence[ThreadStack] = ()
    finding: str = ""
    native: str = ""


job_argument = click.argument("job", metavar="[HOST:PORT|MODEL_DIR|JOB]", required=False)
cluster_option = click.option(
    "--cluster", metavar="HOST:PORT", help="The chief of a standalone cluster that has JOB."
)
task_option = click.option(
    "--task", "tasks", multiple=True, metavar="TASK", help="Only this task: worker:1. May repeat."
)
timeout_option = click.option(
    "--timeout-s", default=5.0, show_default=True, help="How long a task may take to answer."
)


@click.command("stacks")
@job_argument
@cluster_option
@task_option
@click.option("--pid", type=click.IntRange(1), help="The process of a task on this machine.")
@click.option("--native", is_flag=True, help="Stacks of C too, by py-spy, of tasks here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per task.")
@timeout_option
@caller_options
def stacks_command(
    job: str | None,
    cluster: str | None,
    tasks: tuple[str, ...],
    pid: int | None,
    native: bool,
    as_json: bool,
    timeout_s: float,
    **flags: Any,
) -> None:
    """Show where every thread of every task is, what it waits for, and what holds the task up.

    Tasks are asked by their chief. One on this machine that does not answer, since its program
    holds the interpreter, is made to write its stacks by a signal; without JOB, or with --pid, all
    are, and no chief is asked.
    """
    settings = take_settings(flags)
    named = [parse_task(each) for each in tasks]
    if pid is not None or job is None:
        shown = _from_outside(_processes(pid), native=native)
    else:
        shown = _of_job(job, cluster, named, settings, timeout_s, native=native)
    short = {task.short for task in named}
    shown = [each for each in shown if not short or each.task in short]
    if not as_json:
        echo("\n".join([*conclusions(shown), ""]))
    for each in shown:
        echo(json.dumps(asdict(each)) if as_json else text_of(each))


def parse_task(name: str) -> TaskId:
    """Parse the short name of a task.

    Raises:
        ConfigurationError: It is none.
    """
    kind, _, number = name.partition(":")
    index = parse_number(number, 1_000_000)
    if index is None or not kind.isidentifier():
        raise ConfigurationError(f"{name!r:.80} is no task; write worker:1")
    return TaskId(kind, index)


def conclusions(shown: Sequence[TaskStacks]) -> list[str]:
    """Say what holds tasks up, a line for each of them whose stacks show it."""
    lines = [f"{each.task} => {each.finding}" for each in shown if each.finding]
    return lines or ["no task stands at a lock, waits long or holds its interpreter"]


def text_of(each: TaskStacks) -> str:
    """Write the stacks of a task for people, what holds it up first."""
    lines = [f"{each.task} ({each.where})"]
    lines += [f"  => {each.finding}"] * bool(each.finding)
    lines += [as_text(each.stacks)] * bool(each.stacks)
    return "\n".join([*lines, *([each.native] * bool(each.native)), ""])


def _processes(pid: int | None) -> list[SeenProcess]:
    if pid is None:
        found = task_processes()
        if not found:
            raise ConfigurationError(
                "no task of yours runs on this machine; give the HOST:PORT of a job's chief, or "
                "its model directory"
            )
        return found
    process = task_process(pid)
    if process is None:
        raise ConfigurationError(f"{pid} is no task of Ropewalk of yours on this machine")
    return [process]


def _from_outside(processes: Iterable[SeenProcess], *, native: bool) -> list[TaskStacks]:
    return [outside(each, native=native) for each in processes]


def outside(process: SeenProcess, why: str = "", *, native: bool = False) -> TaskStacks:
    """Look at the process of a task on this machine from outside.

    Args:
        process: The process.
        why: Why it is not asked; empty: nobody has tried.
        native: Whether stacks of C are wanted as well.
    """
    stacks = stacks_of(process)
    # What it says by itself is missing, and one look does not show whether it moves.
    again = stacks_of(process) if stacks else None
    if stacks and again:
        now = {each.name: each.calls for each in again}
        stacks = [
            ThreadStack(each.name, each.calls, stands=now.get(each.name) == each.calls)
            for each in stacks
        ]
    finding = what_holds_up(stacks or [])
    if why and not finding and stacks:
        at = place_of(next((each for each in stacks if each.name == "MainThread"), stacks[0]))
        finding = f"its program may hold the interpreter, in C code that is called at {at}"
    finding = finding or where_it_stands(stacks or [])
    return TaskStacks(
        process.task,
        f"pid {process.pid}, seen from outside",
        stacks or (),
        "; ".join(text for text in (why, finding) if text),
        native_stacks(process.pid) if native else "",
    )


def _of_job(
    job: str,
    cluster: str | None,
    tasks: Sequence[TaskId],
    settings: Settings,
    timeout_s: float,
    *,
    native: bool,
) -> list[TaskStacks]:
    try:
        with chief_of(job, cluster, settings) as chief:
            status = chief.status(timeout_s=_STATUS_S)
            answers = ask_all(chief, "stacks", "", tasks, timeout_s=timeout_s)
    except PeerLostError as error:
        return _without_chief(job, cluster, error, native=native)
    return stacks_of_answers(answers, status, timeout_s, native=native)


def _without_chief(
    job: str, cluster: str | None, error: PeerLostError, *, native: bool
) -> list[TaskStacks]:
    """Look at the tasks here of a job whose chief does not answer: its program may hold it up.

    Raises:
        PeerLostError: None is here.
    """
    address = address_of(job) if cluster is None else ""
    here = [each for each in task_processes() if address and each.chief == address]
    if not here:
        raise PeerLostError(
            f"the chief at {address or job} does not answer, and no task of its job runs on this "
            f"machine ({error.message}); `ropewalk report {job}` packs what there is"
        ) from error
    why = f"the chief does not answer ({error.message:.120})"
    return [outside(each, why, native=native) for each in here]


def stacks_of_answers(
    answers: TaskAnswers, status: JobStatus, timeout_s: float, *, native: bool = False
) -> list[TaskStacks]:
    """Put together what tasks have answered, and look from outside at those here that have not.

    Args:
        answers: Answers of tasks.
        status: The job's.
        timeout_s: Time that they had. Unit: seconds.
        native: Whether stacks of C are wanted as well.
    """
    shown = list[TaskStacks]()
    for task in sorted({*answers.of, *answers.errors, *answers.missing}):
        if (answer := answers.of.get(task)) is not None:
            where = f"pid {answer.get('pid')} on {answer.get('host')}"
            here = native and answer.get("host") == socket.gethostname()
            by_py_spy = native_stacks(int(answer["pid"])) if here else ""
            stacks = from_json(answer.get("threads", []))
            found = str(answer.get("held_up", ""))
            shown.append(TaskStacks(task.short, where, stacks, found, by_py_spy))
            continue
        why = answers.errors.get(task) or f"it did not answer within {timeout_s:g} s"
        shown.append(_silent(task, status, why, native=native))
    return shown


def _silent(task: TaskId, status: JobStatus, why: str, *, native: bool) -> TaskStacks:
    known = next((each for each in status.tasks if each.task == task), None)
    pid, host = (known.pid, known.host) if known is not None else (0, "")
    process = task_process(pid) if pid and host == socket.gethostname() else None
    if process is None:  # a ps tells no process id
        own = [each for each in task_processes() if each.task == task.short]
        chiefs = {item.address for item in status.tasks}
        process = next((each for each in own if each.chief in chiefs), None)
    if process is not None:
        return outside(process, why, native=native)
    hint = (
        f"{why}. Its program may hold the interpreter, or the machine is too busy. On "
        f"{host or 'its machine'}: `ropewalk stacks --pid {pid}`, and `py-spy dump --pid "
        f"{pid} --native` for stacks of C"
    )
    return TaskStacks(task.short, f"pid {pid} on {host}" if pid else "somewhere", (), hint)


@click.command("log-level")
@click.argument("job", metavar="HOST:PORT|MODEL_DIR|JOB")
@click.argument("level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]))
@cluster_option
@task_option
@timeout_option
@caller_options
def log_level_command(
    job: str,
    level: str,
    cluster: str | None,
    tasks: tuple[str, ...],
    timeout_s: float,
    **flags: Any,
) -> None:
    """Show log lines of the tasks of JOB from LEVEL on, until they end or are told otherwise."""
    settings = take_settings(flags)
    named = [parse_task(each) for each in tasks]
    with chief_of(job, cluster, settings) as chief:
        answers = ask_all(chief, "log-level", level, named, timeout_s=timeout_s)
    for task, answer in sorted(answers.of.items()):
        echo(f"{task.short}: {answer.get('before')} -> {answer.get('level')}")
    why = dict.fromkeys(answers.missing, f"no answer within {timeout_s:g} s") | answers.errors
    for task, text in sorted(why.items()):
        echo(f"{task.short}: {text}")
    if why:
        raise PeerLostError(f"{len(why)} of the tasks did not take the level", level=level)
