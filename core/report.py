"""Reports of tasks: numbers in heartbeats, and their end. Shown by ``ropewalk status``."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from heapq import nlargest

from .step_times import StepPart, StepTimes
from .task import Outcome


@dataclass(slots=True)
class TaskCounts:
    """The counts of a task's own work since its start.

    Attributes:
        steps: Steps this task finished that changed variables: its share of the global step.
        global_step: Last global step seen.
        total_steps: Global step the program works towards; 0: unknown.
        metrics: Last values the program reported, e.g. ``{"loss": 0.3}``.
        pushes: Number of its steps that pushed something.
        refused_pushes: Steps refused for NaN or infinite gradients.
        replicas: Devices that compute for it; 0: not known yet.
    """

    steps: int = 0
    global_step: int = 0
    total_steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    pushes: int = 0
    refused_pushes: int = 0
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """A GPU that a process computes on.

    Attributes:
        name: Name of the GPU, ``GPU-…`` or of a part of one ``MIG-…``.
        busy: Share of the last second in which it computed; -1: the driver does not say.
        own_bytes: Memory that this process has on it; 0: the driver does not say.
        used_bytes: Memory that all processes have on it.
        total_bytes: Memory of the GPU.
    """

    name: str
    busy: float = -1.0
    own_bytes: int = 0
    used_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """A task's use of its machine; what the system does not say is 0.

    Attributes:
        memory_bytes: Resident memory.
        memory_limit_bytes: Memory that it can have at most: of its cgroup, or the machine.
        memory_left_bytes: Memory of that which is not used by anything.
        cpu_s: Processor time since its start. Unit: seconds.
        cores: Processors that it kept busy in the last seconds.
        machine_cpus: Processors of the machine.
        machine_cores: Processors of the machine that were busy in the last seconds.
        steal: Share of processor time that other virtual machines took in the last seconds.
        cpu_pressure: Share of the last minute in which something on the machine waited for a
            processor.
        memory_pressure: Share of it in which something waited for memory.
        gpus: The GPUs that it computes on.
        machine: Name that tasks of the same machine share, in different containers too, until it is
            started again; empty: the system does not say.
    """

    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    memory_left_bytes: int = 0
    cpu_s: float = 0.0
    cores: float = 0.0
    machine_cpus: int = 0
    machine_cores: float = 0.0
    steal: float = 0.0
    cpu_pressure: float = 0.0
    memory_pressure: float = 0.0
    gpus: tuple[GpuUsage, ...] = ()
    machine: str = ""


@dataclass(slots=True)
class TaskReport(TaskCounts):
    """A worker's or the chief's progress as the chief hears of it.

    Attributes:
        bytes_pushed: Payload sent to all ps.
        bytes_pulled: Payload received from all ps.
        staleness: Mean over the recent pushes. Unit: steps.
        transports: Kinds of connection, per ps.
        serves: Whether it has no program of its own, and ends with the job.
        step_parts: Parts of its steps, by the time they took.
        usage: Use of its machine.
    """

    bytes_pushed: int = 0
    bytes_pulled: int = 0
    staleness: float = 0.0
    transports: tuple[str, ...] = ()
    serves: bool = False
    step_parts: tuple[StepPart, ...] = ()
    usage: ProcessUsage = field(default_factory=ProcessUsage)

    @property
    def step_times(self) -> StepTimes:
        """Times of the task's steps, by part."""
        return StepTimes(self.step_parts)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of a task's part of the job.

    Attributes:
        outcome: Outcome of the task's work.
        message: Why, for people; empty: all is well.
        exit_code: Exit code with which its process ends; 0: it does not say.
    """

    outcome: Outcome
    message: str = ""
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class TableCounters:
    """The counters of a growing table on a ps: what it holds, and what happened to it since it was
    made.

    Attributes:
        name: Name of the table.
        rows: Rows now.
        num_bytes: Memory of rows, slots and index. Unit: bytes.
        admitted: Rows that were made.
        refused: Sightings of keys that were not admitted; their gradients were dropped.
        full: Sightings of keys for which there was no room; their gradients were dropped.
        evicted: Rows that were evicted.
        disk_bytes: Size of rows and slots that are on disk alone. Unit: bytes.
    """

    name: str
    rows: int = 0
    num_bytes: int = 0
    admitted: int = 0
    refused: int = 0
    full: int = 0
    evicted: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ShardCounters:
    """The counters of a shard on a ps.

    Attributes:
        name: Name of the shard, such as ``users/part_0``.
        updates: Number of its changes.
        num_bytes: Size of its values, which a change moves if it is not of rows; 0: a growing
            table's.
    """

    name: str
    updates: int = 0
    num_bytes: int = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes of all its changes, of rows at most."""
        return self.updates * self.num_bytes


def busiest(shards: Iterable[ShardCounters]) -> tuple[ShardCounters, ...]:
    """Return the few shards whose changes had the most bytes, the first of them first."""
    return tuple(nlargest(MOST_LABELS, shards, key=lambda each: (each.moved_bytes, each.updates)))


@dataclass(slots=True)
class PsCounters:
    """A ps's work since its start.

    Attributes:
        pushes: Pushes applied.
        duplicates: Pushes that arrived again and were not applied again.
        refused: Steps refused.
        pulls: Pulls answered.
        bytes_in: Payload received.
        bytes_out: Payload sent.
        variables: Variables with a shard here.
        shards: Shards here.
        value_bytes: Size of the shards' values. Unit: bytes.
        slot_bytes: Size of their slot variables. Unit: bytes.
        sessions: Workers connected now.
        labels: Names of the first few shards.
        global_step: Worker steps applied, as far as this ps knows.
        tables: The first few growing tables.
        usage: Use of its machine.
        busiest: Shards whose changes had the most bytes.
    """

    pushes: int = 0
    duplicates: int = 0
    refused: int = 0
    pulls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    variables: int = 0
    shards: int = 0
    value_bytes: int = 0
    slot_bytes: int = 0
    sessions: int = 0
    labels: tuple[str, ...] = ()
    global_step: int = 0
    tables: tuple[TableCounters, ...] = ()
    usage: ProcessUsage = field(default_factory=ProcessUsage)
    busiest: tuple[ShardCounters, ...] = ()


MOST_LABELS = 8
"""Shards that the status names."""


def total_counters(several: Iterable[PsCounters], sessions: int) -> PsCounters:
    """Add up the counters of one ps, which may lead several shares.

    Args:
        several: Counters of each share.
        sessions: Workers connected to the ps.
    """
    total = PsCounters(sessions=sessions)
    for counters in several:
        sums = {
            field.name: getattr(total, field.name) + getattr(counters, field.name)
            for field in fields(PsCounters)
            if field.name not in ("sessions", "global_step", "usage")
        }
        step = max(total.global_step, counters.global_step)
        total = replace(total, **sums, global_step=step)
    return replace(
        total,
        labels=total.labels[:MOST_LABELS],
        tables=_by_name(total.tables),
        busiest=busiest(total.busiest),
    )


def _by_name(tables: Iterable[TableCounters]) -> tuple[TableCounters, ...]:
    """Add up the counters of each table, of which several shares have parts."""
    totals: dict[str, TableCounters] = {}
    for table in tables:
        total = totals.get(table.name, TableCounters(table.name))
        sums = {
            field.name: getattr(total, field.name) + getattr(table, field.name)
            for field in fields(TableCounters)
            if field.name != "name"
        }
        totals[table.name] = TableCounters(table.name, **sums)
    return tuple(totals.values())


@dataclass(frozen=True, slots=True)
class CutCounts:
    """The cuts that this chief has tried.

    Attributes:
        taken: Number of cuts that were of one moment.
        void: Number of cuts that came to nothing, and were tried again, or given up.
        last_s: Duration of the last cut that was taken, its workers' joining included. Unit:
            seconds.
        last_void: Why the last one was void; empty: none was.
    """

    taken: int = 0
    void: int = 0
    last_s: float = 0.0
    last_void: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A conclusion from the reports of a job's tasks: who is slow, and at what.

    Attributes:
        kind: Kind of the finding, such as ``straggler``.
        subject: Task that it is about, such as ``worker:3``; empty: the whole job.
        text: Sentence for people.
        numbers: Numbers that it was concluded from, by name.
    """

    kind: str
    subject: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Progress of data of which each example is trained once.

    Attributes:
        name: Name of the ledger.
        epoch: Epoch that is trained, from 0.
        ranges: Number of ranges of an epoch.
        done: Number of them that are trained in this epoch.
        leased: Number of them that workers have.
    """

    name: str
    epoch: int
    ranges: int
    done: int
    leased: int
