"""``ropewalk report``: what is known of a job, in one file to send to somebody.

Of a job that runs the tasks are asked; of one that is over there is what it has left in its model
directory. Nothing secret is in it: no values of variables, no keys, tokens or certificates, no
environment, no user or password of a URL.
"""

import json
import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ...core.errors import ConfigurationError, RopewalkError, StorageError
from ...core.settings import Settings
from ...core.task import Phase
from ...launch.options import caller_options, take_settings
from ...launch.screen.plain import echo
from ...worker.lead.status import read_status, status_json
from ...worker.process.event_file import read_events
from .answers import surroundings, without_secrets
from .asking import ask_all, chief_of
from .asking_commands import cluster_option, stacks_of_answers, text_of, timeout_option

_STATUS_S = 5.0
_MOST_FILES = 1000
_PACKED = zipfile.ZIP_DEFLATED
_MOST_BYTES = 256 * 1024 * 1024

Files = dict[str, str]


@click.command("report")
@click.argument("job", metavar="HOST:PORT|MODEL_DIR|JOB")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="The file.  [default: report-TIME.zip]"
)
@cluster_option
@timeout_option
@caller_options
def report_command(
    job: str, output: str | None, cluster: str | None, timeout_s: float, **flags: Any
) -> None:
    """Pack what is known of a job into one file: events, stacks, status, settings, versions.

    Of a job that is over, name the model directory. Nothing secret is in it: no values of
    variables, keys, tokens, or environment variables.
    """
    settings = take_settings(flags)
    files: Files = {"here.json": _json(surroundings("", settings))}
    problems = list[str]()
    for collect in (_of_folder, _of_tasks):
        try:
            files |= collect(job, cluster, settings, timeout_s)
        except (RopewalkError, OSError, ValueError) as error:
            problems.append(str(error))
    if len(files) == 1:
        raise ConfigurationError(f"nothing is known of {job}: {'; '.join(problems)}")
    files["summary.txt"] = summary(files, problems)
    files = {name: without_secrets(text) for name, text in files.items()}
    target = Path(output or f"report-{time.strftime('%Y%m%dT%H%M%S')}.zip")
    try:
        write(target, files)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror or error}") from error
    echo(files["summary.txt"])
    echo(f"written: {target} ({target.stat().st_size} bytes)")


def write(target: Path, files: Files) -> None:
    """Write a report, for this user alone."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    room = _MOST_BYTES
    with os.fdopen(descriptor, "wb") as stream, zipfile.ZipFile(stream, "w", _PACKED) as pack:
        for name, text in list(files.items())[:_MOST_FILES]:
            data = text.encode(errors="replace")[:room]
            room -= len(data)
            pack.writestr(name, data)


def _of_folder(job: str, _: str | None, settings: Settings, __: float) -> Files:  # noqa: ARG001
    """Read what a job has left in its model directory."""
    if not Path(job).is_dir() and "://" not in job:
        return {}
    files: Files = {}
    if (status := read_status(job)) is not None:
        files["status.json"] = status_json(status, indent=1)
    for name, lines in read_events(job).items():
        files[f"left/{name}"] = "".join(f"{json.dumps(line)}\n" for line in lines)
    files["model_dir.txt"] = "\n".join(_listing(Path(job)))
    return files


def _listing(folder: Path) -> Iterator[str]:
    """Name the files of a folder, with their sizes and times."""
    for count, path in enumerate(sorted(folder.rglob("*"))):
        if count == _MOST_FILES:
            yield "…"
            return
        if path.is_file() and not path.is_symlink():
            about = path.stat()
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(about.st_mtime))
            yield f"{at} {about.st_size:>14} {path.relative_to(folder)}"


def _of_tasks(job: str, cluster: str | None, settings: Settings, timeout_s: float) -> Files:
    """Ask the tasks of a job that runs."""
    if Path(job).is_dir() and (written := read_status(job)) is not None and written.phase.is_over:
        return {}
    with chief_of(job, cluster, settings) as chief:
        status = chief.status(timeout_s=_STATUS_S)
        files: Files = {"status.json": status_json(status, indent=1)}
        answers = ask_all(chief, "report", timeout_s=timeout_s)
    for task, answer in answers.of.items():
        place = f"tasks/{task.type}-{task.index}"
        files[f"{place}/events.jsonl"] = str(answer.get("events", ""))
        own = {name: answer.get(name) for name in ("settings", "surroundings")}
        files[f"{place}/task.json"] = _json(own)
    for each in stacks_of_answers(answers, status, timeout_s):
        files[f"tasks/{each.task.replace(':', '-')}/stacks.txt"] = text_of(each)
    return files


def summary(files: Files, problems: list[str]) -> str:
    """Say in some lines what a report says: the job's end, what is wrong, and the last warnings."""
    lines = list[str]()
    asked = {_task_of(name) for name in files if name.startswith("tasks/")}
    if "status.json" in files:
        status = json.loads(files["status.json"])
        why = f": {status['reason']}" if status.get("reason") else ""
        lines.append(f"the job is {status['phase']}{why}")
        if not Phase(status["phase"]).is_over and not asked:
            lines[-1] = "the job has not ended in order, and its chief does not answer"
        lines += [found["text"] for found in status.get("findings", [])]
    for name, text in files.items():
        if name.endswith("stacks.txt"):
            held_up = [line for line in text.splitlines()[1:2] if "=>" in line]
            lines += [f"{text.split()[0]} {line.strip()}" for line in held_up]
    for name, text in files.items():
        if name.endswith(".jsonl") and (name.startswith("tasks/") or _task_of(name) not in asked):
            telling = filter(_is_telling, map(json.loads, text.splitlines()))
            lines += [f"{name}: {_event(each)}" for each in [*telling][-3:]]
    return "\n".join([*lines, *(f"not in it: {each}" for each in problems)])


def _task_of(name: str) -> str:
    """Name the task of ``left/worker-0.TIME-PID.jsonl`` or ``tasks/worker-0/events.jsonl``."""
    return name.split("/")[1].partition(".")[0]


_USUAL = frozenset(
    {"checkpoint.saved", "kernel.compiled", "log.line", "task.began", "task.joined", "wait.over"}
)


def _is_telling(event: dict[str, Any]) -> bool:
    """Return whether an event is one of a job that does not go well."""
    is_warning = event.get("level") in ("WARNING", "ERROR", "CRITICAL")
    return is_warning or event.get("event") not in _USUAL


def _event(event: dict[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(float(event.get("at", 0))))
    fields = (f"{name}={value}" for name, value in event.items() if name not in ("at", "event"))
    return f"{at} {event.get('event', '?')} {' '.join(fields)}"[:300].rstrip()


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True)
