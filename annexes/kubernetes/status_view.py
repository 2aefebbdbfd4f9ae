"""View of the status of a job on Kubernetes: for people a table, for programs JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...launch.screen.status_table import human_seconds
from ...launch.screen.tables import new_table
from .job_status import ClusterStatus, TaskLine
from .observing import JobRow

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
