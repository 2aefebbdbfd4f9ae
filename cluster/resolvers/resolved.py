"""The task of this process, checked and made canonical; a coordinator beside its cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...core.errors import ConfigurationError, TFConfigError
from ...core.task import TaskId
from ...core.terminal import counted
from ..address import parse_address
from ..spec import (
    CHIEF,
    EVALUATOR,
    PS,
    TASK_TYPES,
    WORKER,
    ClusterSpec,
    canonical_spec,
    canonical_type,
    chief_of,
    ps_of,
    training_spec,
    workers_of,
)
from .resolver import ClusterResolver, SimpleClusterResolver
from .tf_config import write_tf_config

# -- Resolving this process's task: a resolver's answers, checked and made canonical -----------
# TF_CONFIG comes in five forms (DESIGN §3): the full one; TFJob's dynamic ones, in which a task
# sees little more than itself, under ``cluster`` or ``sparseCluster``; an empty cluster for the
# chief of such a job; and none at all. All end here.


@dataclass(frozen=True, slots=True)
class ResolvedTask:
    """The task of this process and its cluster.

    Attributes:
        task: Task of this process.
        spec: The training cluster: no evaluator, ``master`` renamed. Empty: this process is all of
            it.
        chief: The chief, which may be worker 0.
        chief_address: Empty if TF_CONFIG does not name it; then a ps knows it.
        address: Address of the task; empty if it serves nothing.
        evaluator: Address of the evaluator, if the cluster lists one.
        dynamic: The cluster may list fewer tasks than there are.
        sources: Source of each decision, for people.
        read_from: The resolver that said so, as it was then; None: it was made otherwise.
    """

    task: TaskId
    spec: ClusterSpec
    chief: TaskId
    chief_address: str = ""
    address: str = ""
    evaluator: str = ""
    dynamic: bool = False
    sources: dict[str, str] = field(default_factory=dict)
    read_from: ClusterResolver | None = field(default=None, compare=False, repr=False)

    @property
    def resolver(self) -> ClusterResolver:
        """Resolver that the task was read from, as it was then; else one of its cluster and
        task.
        """
        return self.read_from or SimpleClusterResolver(
            self.spec, task_type=self.task.type, task_id=self.task.index
        )

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief."""
        return self.task == self.chief

    @property
    def is_local(self) -> bool:
        """Whether this process is the whole cluster: no other task trains, and there is no ps."""
        return not ps_of(self.spec) and not self.dynamic and len(workers_of(self.spec)) <= 1

    @property
    def known_address(self) -> str:
        """The task's address, or else its cluster's, which may be on loopback; empty: none."""
        return self.address or self.evaluator or self.chief_address

    def address_of(self, task: TaskId) -> str:
        """Find the address of a task of the training cluster."""
        return self.spec.task_address(task.type, task.index)

    def addresses(self) -> list[tuple[TaskId, str]]:
        """List every task of the training cluster, with its address."""
        return [(task, self.address_of(task)) for task in self.spec.tasks()]

    def tf_config(self) -> str:
        """Write the task as TF_CONFIG, in one line; what ``ropewalk run --print-tf-config``
        prints.
        """
        cluster: dict[str, object] = dict(self.spec.as_dict())
        if self.evaluator:
            cluster[EVALUATOR] = [self.evaluator]
        # Under the other key it reads back as dynamic, even where no index is missing.
        key = "sparseCluster" if self.dynamic else "cluster"
        return write_tf_config(cluster, self.task, key=key)


def resolve(
    resolver: ClusterResolver,
    *,
    source: str = "",
    overrides: Mapping[str, str] | None = None,
    chief_address: str = "",
) -> ResolvedTask:
    """Check a resolver's answers and make them canonical.

    Args:
        resolver: The resolver, read through one snapshot.
        source: The resolver's name in messages, e.g. ``"flags"``; empty: its own.
        overrides: Sources of decisions that were made elsewhere, for :attr:`ResolvedTask.sources`.
        chief_address: Address from ``--chief``, which wins over the spec.

    Raises:
        ConfigurationError: The task is missing, unknown, out of range or without a cluster; or
            addresses are malformed or used twice.
    """
    source = source or resolver.source
    error = TFConfigError if source == "TF_CONFIG" else ConfigurationError
    snapshot = resolver.snapshot()
    spec, dynamic = snapshot.cluster_spec(), snapshot.dynamic
    kind, index = snapshot.task_type, snapshot.task_id
    overrides = overrides or {}
    is_command = "task.type" in overrides
    if not spec and not dynamic:
        _check_alone(kind, index, error, source, is_command=is_command)
    if not spec and (not dynamic or kind is None):
        return ResolvedTask(
            TaskId(CHIEF, 0),
            ClusterSpec({}),
            TaskId(CHIEF, 0),
            sources={"cluster": "none given: this process is the whole cluster"},
            read_from=snapshot,
        )
    task = _task_of(kind, index, error, source, is_command=is_command)
    whole = canonical_spec(spec)
    if task.type == EVALUATOR and task.index:
        raise error(
            "there can only be one `evaluator` task (with index 0), and this process is evaluator "
            f"{task.index}",
            index=task.index,
        )
    addresses = _check_addresses(whole, error, source)
    if chief_address:
        _check_address(chief_address, chief_of(whole), error, "--chief")
    training = training_spec(whole)
    if task.type != EVALUATOR and not dynamic:
        _check_place(task, training, error, source)
    chief, chief_address = _find_chief(
        task, training, chief_address, dynamic=dynamic, was_given="--chief" in overrides.values()
    )
    named = "the spec" if CHIEF in training.jobs else f"no chief listed: {chief.short} leads"
    return ResolvedTask(
        task,
        training,
        chief,
        chief_address,
        addresses.get(task, ""),
        addresses.get(TaskId(EVALUATOR, 0), ""),
        dynamic,
        {"cluster": source, "task": source, "chief": named, **snapshot.sources, **overrides},
        snapshot,
    )


def _check_alone(
    kind: str | None,
    index: int | None,
    error: type[ConfigurationError],
    source: str,
    *,
    is_command: bool,
) -> None:
    """Refuse a task without a cluster that does not mean a process alone.

    TensorFlow takes worker 0 for one. ``ropewalk worker`` is one of a cluster's.
    """
    if kind in (None, WORKER) and not index and not is_command:
        return
    remedy = "give --cluster, or start the program by python, to be alone"
    if not is_command:
        remedy = "add one with the addresses of all tasks, or take the task away, to be alone"
    raise error(
        f"this process is {canonical_type(kind or WORKER)}:{index or 0}, and {source} has no "
        f"cluster: {remedy}"
    )


def _task_of(
    kind: str | None,
    index: int | None,
    error: type[ConfigurationError],
    source: str,
    *,
    is_command: bool,
) -> TaskId:
    if kind is None:
        if source != "TF_CONFIG":
            raise error(
                f"{source} has a cluster, but does not say which task of it this process is; give "
                "task_type and task_id, or --role and --index"
            )
        raise error(
            f"{source} has a cluster but no task: add "
            '"task": {"type": "worker", "index": 0} with this process\'s own type and index'
        )
    kind = canonical_type(kind)
    if kind not in TASK_TYPES:
        raise error(f"{source}: task.type is {kind!r}; it must be one of {', '.join(TASK_TYPES)}")
    if index is None and kind in (WORKER, PS):
        what = "give --index" if is_command else 'add its "index" to the task, or give task_id'
        raise error(
            f"{source} has a cluster, but does not say which {kind} this process is; {what}"
        )
    return TaskId(kind, index or 0)


def _find_chief(
    task: TaskId, spec: ClusterSpec, address: str, *, dynamic: bool, was_given: bool
) -> tuple[TaskId, str]:
    """Find the chief and its address, if known.

    Args:
        task: Task of this process.
        spec: The training cluster.
        address: The chief's, as far as it was given; wins over the spec.
        dynamic: The cluster may list fewer tasks than there are.
        was_given: Whether ``--chief`` gave it.
    """
    chief = task if dynamic and task.type == CHIEF else chief_of(spec)
    if not address and chief.type in spec.jobs:
        is_listed = chief.index in spec.task_indices(chief.type)
        # A dynamic cluster lists a worker only itself: there may be a chief that is not listed.
        if is_listed and (not dynamic or chief == task or chief.type == CHIEF):
            address = spec.task_address(chief.type, chief.index)
    if task.type == WORKER:
        is_unlisted = dynamic and not address and task != chief
        # A worker that was given the chief's address is not the chief.
        if is_unlisted or (address and was_given):
            chief = TaskId(CHIEF, 0)
    return chief, address


def _check_place(
    task: TaskId, spec: ClusterSpec, error: type[ConfigurationError], source: str
) -> None:
    indices = spec.task_indices(task.type) if task.type in spec.jobs else []
    if not indices:
        raise error(
            f"{source}: this process is {task}, but the cluster has no job {task.type!r}; "
            f"it has {', '.join(spec.jobs) or 'none'}"
        )
    if task.index not in indices:
        raise error(
            f"{source}: task.index {task.index} is out of range: job {task.type!r} has "
            f"{counted(len(indices), 'task')} (index {', '.join(map(str, indices))})",
            index=task.index,
            tasks=len(indices),
        )


def _check_addresses(
    spec: ClusterSpec, error: type[ConfigurationError], source: str
) -> dict[TaskId, str]:
    owner: dict[str, TaskId] = {}
    addresses: dict[TaskId, str] = {}
    for task in spec.tasks():
        address = spec.task_address(task.type, task.index)
        _check_address(address, task, error, source)
        if address in owner:
            raise error(
                f"{source}: {owner[address]} and {task} have the same address {address!r}; "
                "every task needs its own",
                task=task,
                address=address,
            )
        owner[address] = task
        addresses[task] = address
    return addresses


def _check_address(
    address: str, task: TaskId, error: type[ConfigurationError], source: str
) -> None:
    try:
        parse_address(address, task)
    except ConfigurationError as wrong:
        raise error(f"{source}: {wrong.message}", task=task, **wrong.fields) from None


# -- A coordinator's program beside a cluster of servers that does not name it. Pure -----------
# TensorFlow's cluster of workers and parameter servers has no task for the program that
# coordinates them: its resolver says no task type. Here that program is the chief, at a port that
# it chooses; workers learn its address from a ps.


def servers_to_coordinate(resolver: ClusterResolver) -> ClusterSpec | None:
    """Find the cluster that a program coordinates without being a task of it; None: it is a task.

    Args:
        resolver: Resolver that the user gave to the strategy.
    """
    if resolver.from_launcher or resolver.task_type is not None:
        return None
    spec = canonical_spec(resolver.cluster_spec())
    names_all = CHIEF in spec.jobs or not {PS, WORKER} <= set(spec.jobs)
    return None if names_all else spec


def coordinator_of(spec: ClusterSpec, host: str) -> ResolvedTask:
    """Describe the coordinator's program, as the chief of the cluster.

    Args:
        spec: The cluster from :func:`servers_to_coordinate`.
        host: Host at which the servers reach this process.

    Raises:
        ConfigurationError: The addresses are malformed or used twice.
    """
    worker = resolve(SimpleClusterResolver(spec, task_type=WORKER, task_id=0), source="cluster")
    chief, address = TaskId(CHIEF, 0), f"{host}:0"
    whole = ClusterSpec({**worker.spec.as_dict(), CHIEF: [address]})
    sources = {"cluster": "cluster_resolver", "task": "none given: this program coordinates"}
    return ResolvedTask(chief, whole, chief, address, address, sources=sources)


def served_by_coordinator(worker: ResolvedTask) -> ResolvedTask:
    """Describe a worker that runs closures: in a cluster that names no chief, somebody else is it.

    Raises:
        ConfigurationError: The cluster has no ps either, which could say where.
    """
    if CHIEF in worker.spec.jobs:
        return worker
    if PS not in worker.spec.jobs:
        raise ConfigurationError(
            f"{worker.task} cannot find out who schedules its closures: the cluster names "
            "neither a chief, nor a ps that could be asked; name the task that runs the "
            "coordinator's program as chief"
        )
    return replace(worker, chief=TaskId(CHIEF, 0), chief_address="")
