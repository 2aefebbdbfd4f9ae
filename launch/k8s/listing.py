"""The jobs of a namespace, one line each: from their objects, and what their chiefs write."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ...core.errors import AccessError
from ..screen.status_table import human_seconds
from .client import KubernetesApi
from .job_status import Observed, job_status
from .names import COMPONENT, INSTANCE, NAME, STATUS
from .progress import Progress
from .status_view import PHASE_STYLES

Json = dict[str, Any]

_OURS = f"{NAME}=ropewalk"


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list.

    Attributes:
        name: Name of the job.
        phase: Phase of the job, as in :class:`~ropewalk.launch.k8s.job_status.ClusterStatus`.
        running: Tasks whose pods run.
        tasks: Tasks that it should have.
        age_s: Age of its oldest Job. Unit: seconds.
        progress: Progress that its chief has written.
        reason: Why it failed or waits; empty: nothing to say.
    """

    name: str
    phase: str
    running: int
    tasks: int
    age_s: float
    progress: Progress
    reason: str = ""


def list_jobs(api: KubernetesApi) -> list[JobRow]:
    """List all jobs of the namespace, by name.

    Raises:
        NotFoundError: There is no such namespace.
    """
    listed = {
        kind: [{"kind": kind, **each} for each in api.list_all(kind, _OURS).items]
        for kind in ("Job", "StatefulSet", "Pod")
    }
    names = sorted({_instance(item) for kind in ("Job", "StatefulSet") for item in listed[kind]})
    if not names:
        api.check_namespace()
    records = {_instance(each): each for each in _records(api)}
    return [
        _row(
            name,
            Observed(
                _of(name, listed["Job"]),
                _of(name, listed["StatefulSet"]),
                _of(name, listed["Pod"]),
                record=records.get(name),
            ),
            api.now(),
        )
        for name in names
        if name
    ]


def _records(api: KubernetesApi) -> list[Json]:
    try:
        return api.list_all("ConfigMap", f"{_OURS},{COMPONENT}={STATUS}").items
    except AccessError:  # an older role
        return []


def _row(name: str, seen: Observed, now: datetime) -> JobRow:
    status = job_status(name, seen, now)
    running = sum(line.state == "Running" for line in status.tasks)
    owners = [*seen.jobs, *seen.stateful_sets]
    created = [str(each["metadata"].get("creationTimestamp", "")) for each in owners]
    began = [datetime.fromisoformat(each.replace("Z", "+00:00")) for each in created if each]
    age_s = (now - min(began)).total_seconds() if began else 0.0
    return JobRow(
        name, status.phase, running, len(status.tasks), age_s, status.progress, status.reason
    )


def _instance(item: Json) -> str:
    return str((item["metadata"].get("labels") or {}).get(INSTANCE, ""))


def _of(name: str, items: Iterable[Json]) -> list[Json]:
    return [each for each in items if _instance(each) == name]


def rows_json(rows: Sequence[JobRow]) -> str:
    """Write a list in one line."""
    return json.dumps([asdict(row) for row in rows])


def rows_view(rows: Sequence[JobRow]) -> Table:
    """Make a table, a line for each job."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("job", "phase", "running", "age", "step", "steps/s", "checkpoint"):
        table.add_column(name, no_wrap=True)
    table.add_column("reason", overflow="fold")
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
