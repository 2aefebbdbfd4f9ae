"""The catalogue of the metrics that tasks show Prometheus (docs/metrics.md).

Names follow Prometheus' conventions: a prefix, the base unit, and ``_total`` for what only grows;
moments are Unix times, from which the reader subtracts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A metric.

    Attributes:
        name: Name with the prefix, the unit and, if it only grows, ``_total``.
        help: Description of the metric, for people.
        labels: Names of its labels.
        shown_by: Tasks that show it.
        counts: Attribute of the counters that these tasks have anyway; empty: it is computed.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    shown_by: str
    counts: str

    @property
    def is_counter(self) -> bool:
        """Whether it only grows, from the start of the task."""
        return self.name.endswith("_total")

    @property
    def is_histogram(self) -> bool:
        """Whether its values are :class:`Distribution`."""
        return self.name == "ropewalk_step_seconds"


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric, with the values of its labels in their order."""

    metric: CatalogueEntry
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram of a metric, with the values of its labels in their order.

    Attributes:
        metric: The metric.
        buckets: Upper bounds, and how many values are up to each; the last is infinite.
        total: Sum of the values.
        labels: Values of the labels.
    """

    metric: CatalogueEntry
    buckets: tuple[tuple[float, int], ...]
    total: float
    labels: tuple[str, ...] = ()


CATALOGUE: dict[str, CatalogueEntry] = {}


def _metric(shown_by: str, name: str, text: str, *labels: str, counts: str = "") -> CatalogueEntry:
    metric = CATALOGUE[name] = CatalogueEntry(f"ropewalk_{name}", text, labels, shown_by, counts)
    return metric


def counted_samples(shown_by: str, counters: Any, *labels: str) -> Iterator[Sample]:
    """Yield samples of all metrics of some tasks that are attributes of their counters."""
    for metric in CATALOGUE.values():
        if metric.counts and metric.shown_by == shown_by:
            yield Sample(metric, getattr(counters, metric.counts), labels)


_EVERY = "every task"
USAGE = "every task of a job"  # ProcessUsage
GPUS = "tasks that compute on NVIDIA GPUs, with the extra nvml"  # GpuUsage
PROGRAMS = "chief, workers, evaluator"  # their counters: TaskReport
PS = "ps"  # PsCounters
_SERVERS = "ps, chief"
CHIEF = "chief, or worker 0 in its place"  # SaveCounters
_COORDINATOR = "chief, of a program with a coordinator"
_CLUSTER = "a standing cluster"
_REPLICATED = "chief, of a job with replicas"
TABLES = "ps, of tables that grow"  # TableCounters
_FOLLOWED = "ps, of a job whose shares move"
_CACHING = "workers, of tables with staleness_reads"
_READERS = "readers (rw.embedding.Reader)"

TASK_INFO = _metric(
    _EVERY,
    "task_info",
    "Always 1; the labels say which task of which job this is, and what it runs.",
    "job_id", "role", "index", "version", "python",
)  # fmt: skip
DRAINING = _metric(_EVERY, "task_draining", "1 from a request to end on, such as SIGTERM.")

_metric(USAGE, "task_memory_bytes", "Resident memory of the task's process.", counts="memory_bytes")
_metric(
    USAGE,
    "task_memory_limit_bytes",
    "Most that it can have: of its cgroup, or the machine.",
    counts="memory_limit_bytes",
)
_metric(
    USAGE,
    "task_memory_left_bytes",
    "Of that, what nothing uses.",
    counts="memory_left_bytes",
)
_metric(USAGE, "task_busy_cores", "Processors that its process kept busy of late.", counts="cores")
_metric(
    USAGE,
    "machine_busy_cores",
    "Processors of its machine that were busy of late, by whatever.",
    counts="machine_cores",
)
_metric(USAGE, "machine_cores", "Processors of its machine.", counts="machine_cpus")
_metric(
    USAGE,
    "machine_steal_ratio",
    "Share of processor time that other virtual machines took of late.",
    counts="steal",
)
_metric(
    USAGE,
    "machine_cpu_pressure_ratio",
    "Share of the last minute in which something on its machine waited for a processor.",
    counts="cpu_pressure",
)
_metric(
    USAGE,
    "machine_memory_pressure_ratio",
    "Share of the last minute in which something on its machine waited for memory.",
    counts="memory_pressure",
)
_metric(
    GPUS,
    "task_gpu_busy_ratio",
    "Share of the last second in which the GPU computed; -1: the driver does not say.",
    "gpu",
    counts="busy",
)
_metric(
    GPUS,
    "task_gpu_own_bytes",
    "Memory that the task has on the GPU; 0: the driver does not say.",
    "gpu",
    counts="own_bytes",
)
_metric(GPUS, "task_gpu_used_bytes", "Memory that all have on it.", "gpu", counts="used_bytes")
_metric(GPUS, "task_gpu_total_bytes", "Memory of the GPU.", "gpu", counts="total_bytes")

_metric(PROGRAMS, "steps_total", "Steps that this task has finished.", counts="steps")
_metric(PROGRAMS, "pushes_total", "Of them, those that pushed something.", counts="pushes")
_metric(PROGRAMS, "pushed_bytes_total", "Payload sent to all ps.", counts="bytes_pushed")
_metric(PROGRAMS, "pulled_bytes_total", "Payload received from all ps.", counts="bytes_pulled")
_metric(
    PROGRAMS,
    "refused_steps_total",
    "Steps whose gradients had NaN or infinity and were not pushed.",
    counts="refused_pushes",
)
STEP_SECONDS = _metric(
    PROGRAMS,
    "step_seconds",
    "Histogram of the time that steps take: `step`, and of it `data`, `pull`, `compute`, `push`, "
    "`others` and `checkpoint`.",
    "part",
)
_metric(
    PROGRAMS,
    "staleness_steps",
    "Mean over the recent pushes: updates of others between a pull and the push made from it.",
    counts="staleness",
)
_metric(
    PROGRAMS, "global_step", "The job's global step that this task saw last.", counts="global_step"
)
_metric(
    PROGRAMS, "replicas", "Devices that compute for this task; 0: not known yet.", counts="replicas"
)
PS_CONNECTIONS = _metric(
    PROGRAMS,
    "ps_connections",
    "Parameter servers this task is connected to, by kind of connection.",
    "kind",
)
REPORTED = _metric(
    PROGRAMS,
    "reported_value",
    "Last value that the program reported under this name, e.g. loss.",
    "name",
)
CACHED_ROWS = _metric(
    _CACHING,
    "embedding_cached_rows_total",
    "Distinct rows of lookups that were read from this worker's memory (staleness_reads).",
    "table",
)
UNCACHED_ROWS = _metric(
    _CACHING,
    "embedding_pulled_rows_total",
    "Distinct rows of lookups of such a table that were pulled.",
    "table",
)

READER_LAG = _metric(
    _READERS,
    "reader_lag_seconds",
    "How old the rows that a reader keeps of a table may be.",
    "table",
)
READER_ROWS = _metric(_READERS, "reader_kept_rows", "Rows that a reader keeps of a table.", "table")
READER_BYTES = _metric(
    _READERS, "reader_kept_bytes", "Memory of them and all that is kept beside them.", "table"
)
READER_HITS = _metric(
    _READERS,
    "reader_cached_rows_total",
    "Distinct rows of lookups that were read from the reader's memory.",
    "table",
)
READER_MISSES = _metric(
    _READERS,
    "reader_looked_up_rows_total",
    "Distinct rows of lookups of such a table that the servers were asked for.",
    "table",
)
READER_CHANGES = _metric(
    _READERS,
    "reader_changed_rows_total",
    "Rows of a table that servers named as changed, or as there when following began.",
    "table",
)
READER_RENEWED = _metric(
    _READERS,
    "reader_renewed_rows_total",
    "Rows that it pulled to keep them, as they are after changes.",
    "table",
)
READER_RECEIVED = _metric(
    _READERS, "reader_received_bytes_total", "Rows and keys received from all ps."
)

_metric(PS, "ps_pushes_total", "Pushes applied.", counts="pushes")
_metric(
    PS,
    "ps_duplicate_pushes_total",
    "Pushes that arrived again and were not applied again.",
    counts="duplicates",
)
_metric(PS, "ps_refused_steps_total", "Steps refused, for whatever reason.", counts="refused")
_metric(PS, "ps_pulls_total", "Pulls answered.", counts="pulls")
_metric(PS, "ps_received_bytes_total", "Payload received from workers.", counts="bytes_in")
_metric(
    PS,
    "ps_sent_bytes_total",
    "Payload sent to workers, shared memory included.",
    counts="bytes_out",
)
_metric(PS, "ps_variables", "Variables with a shard here.", counts="variables")
_metric(PS, "ps_shards", "Shards held here.", counts="shards")
_metric(PS, "ps_value_bytes", "Memory of the shards' values.", counts="value_bytes")
_metric(PS, "ps_slot_bytes", "Memory of the optimizers' slot variables.", counts="slot_bytes")
_metric(TABLES, "ps_table_rows", "Rows of a growing table here.", "table", counts="rows")
_metric(
    TABLES,
    "ps_table_bytes",
    "Memory of a growing table's rows, slots and index here.",
    "table",
    counts="num_bytes",
)
_metric(
    TABLES,
    "ps_table_disk_bytes",
    "Rows and slots of a growing table that are on disk alone here.",
    "table",
    counts="disk_bytes",
)
_metric(
    TABLES,
    "ps_table_admitted_rows_total",
    "Rows that a growing table has made.",
    "table",
    counts="admitted",
)
_metric(
    TABLES,
    "ps_table_refused_keys_total",
    "Sightings of keys that a growing table did not admit; their gradients were dropped.",
    "table",
    counts="refused",
)
_metric(
    TABLES,
    "ps_table_full_keys_total",
    "Sightings of keys for which a growing table had no room; their gradients were dropped.",
    "table",
    counts="full",
)
_metric(
    TABLES,
    "ps_table_evicted_rows_total",
    "Rows that a growing table has evicted.",
    "table",
    counts="evicted",
)
PS_LIMIT = _metric(
    PS, "ps_limit_bytes", "Most that values and slots may have together (max_ps_bytes)."
)
_metric(PS, "ps_sessions", "Workers that have a session here.", counts="sessions")
PS_MAX_SESSIONS = _metric(PS, "ps_max_sessions", "Most workers that may have one (max_sessions).")
_metric(
    PS, "ps_global_step", "The job's global step, as far as this ps knows.", counts="global_step"
)
PS_SHARES = _metric(
    _FOLLOWED, "ps_shares", "Shares of the variables that this ps leads, or follows.", "role"
)
PS_UNACKNOWLEDGED = _metric(
    _FOLLOWED,
    "ps_unacknowledged_records",
    "Records of a share that this ps leads, which a follower has not acknowledged yet.",
    "share",
    "follower",
)
PS_CHIEF_SILENCE = _metric(
    PS,
    "ps_chief_silence_seconds",
    "Since the chief renewed its lease; before the first time, since the start.",
)

CONNECTIONS = _metric(
    _SERVERS, "connections", "Connections that are being served, gRPC's left out."
)
REFUSED_CONNECTIONS = _metric(
    _SERVERS, "refused_connections_total", "Connections closed because there were too many."
)
REFUSED_CALLERS = _metric(
    _SERVERS,
    "refused_callers_total",
    "Calls and greetings refused for who made them (docs/security.md).",
)

JOB_PHASE = _metric(
    CHIEF, "job_phase", "1 for the phase that the job is in, 0 for the others.", "phase"
)
JOB_TASKS = _metric(CHIEF, "job_tasks", "Tasks of the job by role and state.", "role", "state")
JOB_STEP = _metric(CHIEF, "job_global_step", "The job's global step.")
JOB_GOAL = _metric(
    CHIEF, "job_goal_steps", "Global step that the program works towards; 0: not said."
)
JOB_REPLICAS = _metric(
    _REPLICATED,
    "job_share_replicas",
    "Ps that have a share of the variables, the one that leads it included.",
    "share",
)
JOB_MISSING_REPLICAS = _metric(
    _REPLICATED,
    "job_missing_replicas",
    "Replicas that ps_replicas asks for and that are not there.",
)
JOB_FAILOVERS = _metric(
    _REPLICATED,
    "job_failovers_total",
    "Times that another ps has come to lead a share because its leader was lost.",
)
JOB_FAILOVER_SECONDS = _metric(
    _REPLICATED,
    "job_last_failover_seconds",
    "How long the last one took, from when the loss was known; 0: there was none.",
)
JOB_HANDOVERS = _metric(
    _REPLICATED,
    "job_handovers_total",
    "Times that another ps has come to lead a share in order: by a move, or since one left.",
)
JOB_MOVES = _metric(
    _REPLICATED, "job_moves_total", "Moves of shares that were over, by how they ended.", "outcome"
)
JOB_MOVE_SECONDS = _metric(
    _REPLICATED, "job_last_move_seconds", "How long the last move took that was over; 0: none."
)
JOB_CUTS = _metric(
    CHIEF,
    "job_cuts_total",
    "Consistent cuts, for checkpoints and snapshots: taken, or void and tried again.",
    "outcome",
)
JOB_CUT_SECONDS = _metric(
    CHIEF, "job_last_cut_seconds", "How long the last one took that was taken; 0: none was."
)
JOB_AGE = _metric(CHIEF, "job_age_seconds", "Since this chief has begun to lead the job.")
_metric(CHIEF, "checkpoints_total", "Checkpoints written since this chief's start.", counts="saved")
_metric(
    CHIEF, "failed_checkpoints_total", "Checkpoints that could not be written.", counts="failed"
)
_metric(CHIEF, "checkpoint_under_way", "1 while a checkpoint is being written.", counts="under_way")
SAVED_STEP = _metric(CHIEF, "last_checkpoint_step", "Global step of the last one; 0: none yet.")
_metric(
    CHIEF,
    "last_checkpoint_timestamp_seconds",
    "When the last one was complete; 0: none yet.",
    counts="saved_at",
)
_metric(
    CHIEF, "last_checkpoint_duration_seconds", "How long it took to write.", counts="duration_s"
)

CLOSURES_WAITING = _metric(
    _COORDINATOR, "closures_waiting", "Closures scheduled that no worker has yet."
)
CLOSURES_RUNNING = _metric(
    _COORDINATOR, "closures_running", "Closures that a worker has and has not answered."
)

CLUSTER_JOBS = _metric(
    _CLUSTER, "cluster_jobs", "Jobs by state; of those that ended, the last 100.", "state"
)
CLUSTER_NODES = _metric(_CLUSTER, "cluster_nodes", "Nodes by state.", "state")
NODE_TASKS = _metric(_CLUSTER, "node_tasks", "Tasks of jobs that run on this node.")
