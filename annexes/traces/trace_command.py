"""``ropewalk trace``: the next steps of a running job, in a file for Perfetto or Chrome."""

import json
import time
from pathlib import Path
from typing import Any

import click

from ...client.chief.calls import ChiefClient
from ...core import annexes
from ...core.errors import PeerLostError, StorageError
from ...core.task import TaskId
from ...launch.options import caller_options, take_settings
from ...launch.screen.plain import echo
from .chrome import SeenSpan, aligned, chosen, chrome_trace, seen_spans, unanswered
from .task_answers import LONGEST_S, MOST_STEPS

_ANSWER_S = 5.0  # for what tasks have at hand, and on the way


@click.command("trace")
@click.argument("job", metavar="HOST:PORT|MODEL_DIR|JOB")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="The file.  [default: trace-TIME.json]"
)
@click.option(
    "-n", "--steps", type=click.IntRange(1, MOST_STEPS), default=3, show_default=True,
    help="Steps of each task.",
)  # fmt: skip
@click.option(
    "--timeout-s", type=click.IntRange(1, LONGEST_S), default=10, show_default=True,
    help="How long these steps may take.",
)  # fmt: skip
@click.option(
    "--cluster", metavar="HOST:PORT", help="The chief of a standalone cluster that has JOB."
)
@caller_options
def trace_command(
    job: str,
    output: str | None,
    steps: int,
    timeout_s: int,
    cluster: str | None,
    **flags: Any,
) -> None:
    """Trace the next steps of JOB, on its workers, ps and chief, into a file.

    The file is for ui.perfetto.dev or chrome://tracing. No collector is needed, nor --trace.
    """
    settings = take_settings(flags)
    with _asking().chief_of(job, cluster, settings) as chief:
        traces, silent = _trace_steps(chief, steps, timeout_s)
        spans, missing = _spans(chief)
    seen = aligned(chosen(spans, traces))
    path = Path(output or f"trace-{time.strftime('%Y%m%d-%H%M%S')}.json")
    try:
        path.write_text(json.dumps(chrome_trace(seen)))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", path=str(path)) from error
    numbers = f"{len(traces)} steps, {len(seen)} spans of {len({each.task for each in seen})} tasks"
    echo(f"{path}: {numbers}; open it at ui.perfetto.dev or chrome://tracing")
    for task, why in sorted((silent | missing).items()):
        echo(f"{task.short}: {why}")
    if left_out := unanswered(seen):
        echo(f"{left_out} exchanges have no spans of the other task: it keeps the last 4,096")


def _trace_steps(
    chief: ChiefClient, steps: int, timeout_s: int
) -> tuple[list[str], dict[TaskId, str]]:
    """Have tasks trace their next steps; returns the traces, and who has none and why.

    Raises:
        PeerLostError: No task has made a step.
    """
    answers = _asking().ask_all(
        chief, "trace-steps", f"{steps}/{timeout_s}", timeout_s=timeout_s + _ANSWER_S
    )
    traces = [str(each) for answer in answers.of.values() for each in answer.get("traces", ())]
    why = _why(answers) | {
        task: f"no step within {timeout_s} s"
        for task, answer in answers.of.items()
        if task.type == "worker" and not answer.get("traces")
    }
    if not traces:
        text = "; ".join(f"{task.short}: {each}" for task, each in sorted(why.items()))
        raise PeerLostError(
            f"no task has made a step within {timeout_s} s ({text or 'the job has no program'}); "
            "`ropewalk stacks` says where they are, --timeout-s waits longer"
        )
    return traces, why


def _spans(chief: ChiefClient) -> tuple[list[SeenSpan], dict[TaskId, str]]:
    answers = _asking().ask_all(chief, "trace-spans", timeout_s=_ANSWER_S)
    spans, why = list[SeenSpan](), _why(answers)
    for task, answer in answers.of.items():
        try:
            spans += seen_spans(answer)
        except ValueError as error:
            why[task] = str(error)
    return spans, why


def _asking() -> Any:
    return annexes.the("asking", "diagnosis", "`ropewalk trace`")


def _why(answers: Any) -> dict[TaskId, str]:
    errors: dict[TaskId, str] = answers.errors
    return dict.fromkeys(answers.missing, "it did not answer in time") | errors
