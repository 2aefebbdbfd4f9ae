"""RunConfig: where and how an Estimator trains, as ``tf.estimator.RunConfig``."""

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ...cluster.resolvers.launchers import environment_resolver
from ...cluster.resolvers.resolved import ResolvedTask, resolve
from ...cluster.resolvers.tf_config import read_tf_config, task_of
from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER, ClusterSpec, ps_of, workers_of
from ...core.errors import ConfigurationError
from ...distribute.program_cluster import program_cluster
from ...distribute.strategies.strategy import Strategy

log = logging.getLogger(__name__)

GivenStrategy = Strategy | Callable[[], Strategy]
"""A strategy, or what makes one when it is needed, such as the class itself."""

SAVE_SECS = 600


@dataclass(frozen=True)
class DistributeConfig:
    """Strategies of an Estimator, as ``tf.contrib.distribute.DistributeConfig``.

    Attributes:
        train_distribute: Trains; see :class:`RunConfig`.
        eval_distribute: Evaluates.
        remote_cluster: Address of a standalone cluster, ``host:port``: the program stays here, and
            its variables are there.
    """

    train_distribute: GivenStrategy | None = None
    eval_distribute: GivenStrategy | None = None
    remote_cluster: str | None = None


@dataclass(frozen=True, eq=False)
class RunConfig:
    """Configuration of an Estimator, as ``tf.estimator.RunConfig``, equal to itself alone.

    The cluster and this task come from TF_CONFIG, or from the launcher.

    Attributes:
        model_dir: Folder of checkpoints, summaries and exports. None: set from TF_CONFIG; else
            the job's, or a new temporary folder.
        tf_random_seed: Seed of NumPy and ``random`` when a training begins; None: left alone.
        save_summary_steps: Steps between two summaries; 0: none.
        save_checkpoints_steps: Steps between two checkpoints; 0: as None.
        save_checkpoints_secs: Seconds between two checkpoints; None or 0: by steps alone. 600,
            unless steps are given.
        keep_checkpoint_max: Number of checkpoints kept.
        keep_checkpoint_every_n_hours: TensorFlow's; not used.
        log_step_count_steps: Steps between two lines of the log; None: none.
        train_distribute: A strategy, or what makes one, such as
            ``rw.distribute.ParameterServerStrategy``. In a cluster give what makes one: a strategy
            joins the cluster where it is made, and would not know ``model_dir``. None: parameter
            servers where the cluster has some, else one device.
        eval_distribute: A strategy, or what makes one; None: one device. An evaluation runs in one
            process: if the strategy has several, on the devices of this one.
        experimental_distribute: Both of these, and a remote cluster.
        experimental_max_worker_delay_secs: Most seconds that a worker waits before it begins:
            without ``train_distribute`` worker ``i`` begins ``5 * (i + 1)`` s later, and at most
            this many; None: 60.
        session_config: TensorFlow's; not used.
        session_creation_timeout_secs: TensorFlow's; not used (``join_timeout_s`` bounds joining).
        device_fn: TensorFlow's; not used: the strategy places variables.
        protocol: TensorFlow's; not used: tasks find the quickest connection by themselves.
        checkpoint_save_graph_def: TensorFlow's; not used.

    Raises:
        ConfigurationError: A value is not allowed, or both steps and seconds are given; TF_CONFIG
            has another model_dir, or a cluster or task that cannot train.
    """

    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = field(default=-1.0)
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = 10_000
    log_step_count_steps: int | None = 100
    train_distribute: GivenStrategy | None = None
    eval_distribute: GivenStrategy | None = None
    experimental_distribute: DistributeConfig | None = None
    experimental_max_worker_delay_secs: float | None = None
    session_config: Any = None
    session_creation_timeout_secs: float = 7200
    device_fn: Any = None
    protocol: str | None = None
    checkpoint_save_graph_def: bool = True

    def __post_init__(self) -> None:
        config = read_tf_config()
        object.__setattr__(self, "model_dir", _model_dir(self.model_dir, config))
        if self.save_checkpoints_secs == -1.0:  # not given
            by_steps = self.save_checkpoints_steps is not None
            object.__setattr__(self, "save_checkpoints_secs", None if by_steps else SAVE_SECS)
        elif self.save_checkpoints_secs is not None and self.save_checkpoints_steps is not None:
            raise ConfigurationError(
                f"save_checkpoints_steps={self.save_checkpoints_steps} and "
                f"save_checkpoints_secs={self.save_checkpoints_secs:g}: give one of them"
            )
        self._check_numbers()
        _check_device_fn(self.device_fn)
        self._take_experimental()
        if program_cluster() is None:
            self._check_tf_config(config)
        for name in ("train_distribute", "eval_distribute"):
            strategy = getattr(self, name)
            if not (strategy is None or isinstance(strategy, Strategy) or callable(strategy)):
                raise TypeError(
                    f"{name} is a strategy or what makes one, got {type(strategy).__name__}"
                )

    def _check_numbers(self) -> None:
        """Check the numbers as TensorFlow checks them; also what is not used."""
        for name in (
            "log_step_count_steps",
            "keep_checkpoint_every_n_hours",
            "session_creation_timeout_secs",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name}={value}: it must be positive")
        for name in (
            "save_checkpoints_steps",
            "save_checkpoints_secs",
            "save_summary_steps",
            "keep_checkpoint_max",
        ):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigurationError(f"{name}={value}: it must not be negative")
        if self.tf_random_seed is not None and not isinstance(self.tf_random_seed, int):
            raise ConfigurationError(f"tf_random_seed must be integer, got {self.tf_random_seed!r}")

    def _check_tf_config(self, config: dict[str, Any]) -> None:
        """Check TF_CONFIG as TensorFlow does, which leaves the cluster of a strategy to that."""
        if self.train_distribute is not None or not (config.get("cluster") or config.get("task")):
            return
        self.check_cluster()
        if config.get("cluster") and task_of(config)[1] is None:
            raise ConfigurationError('If "cluster" is set in TF_CONFIG, task index must be set.')

    def _take_experimental(self) -> None:
        distribution = self.experimental_distribute
        if distribution is None:
            return
        for name in ("train_distribute", "eval_distribute"):
            if getattr(distribution, name) is not None:
                if getattr(self, name) not in (None, getattr(distribution, name)):
                    raise ConfigurationError(
                        f"{name} is given to RunConfig and to its experimental_distribute; give "
                        "it once"
                    )
                object.__setattr__(self, name, getattr(distribution, name))
        if distribution.remote_cluster is not None and not self.task.is_local:
            raise ConfigurationError(
                f"remote_cluster={distribution.remote_cluster!r} and a cluster in "
                f"{self.task.resolver.source}: the program runs here, and its variables there; "
                "take one of them away"
            )

    def replace(self, **changes: Any) -> "RunConfig":
        """Copy the configuration with some values changed.

        Raises:
            ConfigurationError: A value is not allowed, or there is no such one.
        """
        names = {spec.name for spec in fields(self)}
        unknown = sorted(changes.keys() - names)
        if unknown:
            raise ConfigurationError(f"RunConfig has no {unknown[0]!r}; it has {sorted(names)}")
        if "save_checkpoints_steps" in changes and "save_checkpoints_secs" not in changes:
            changes["save_checkpoints_secs"] = -1.0
        if "save_checkpoints_secs" in changes and "save_checkpoints_steps" not in changes:
            changes["save_checkpoints_steps"] = None
        return replace(self, **changes)

    # -- the cluster -------------------------------------------------------------------------

    @property
    def task(self) -> ResolvedTask:
        """Task of this process in its cluster.

        Raises:
            ConfigurationError: TF_CONFIG, or what the launcher says, is not valid.
        """
        runtime = program_cluster()
        return runtime.task if runtime is not None else resolve(environment_resolver())

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The training cluster; empty in an evaluator, and for a process alone."""
        task = self.task
        return ClusterSpec({}) if task.task.type == EVALUATOR else task.spec

    @property
    def task_type(self) -> str:
        """chief, worker, ps or evaluator; of a process alone worker, as in TensorFlow."""
        task = self.task
        return WORKER if not task.spec and task.task.type != EVALUATOR else task.task.type

    @property
    def task_id(self) -> int:
        """Number among the tasks of this type."""
        return self.task.task.index

    @property
    def is_chief(self) -> bool:
        """Whether this task leads; not of an evaluator."""
        task = self.task
        return task.task.type != EVALUATOR and task.is_chief

    @property
    def num_worker_replicas(self) -> int:
        """Chief and workers; 0 in an evaluator."""
        task = self.task
        if task.task.type == EVALUATOR:
            return 0
        return len(workers_of(task.spec)) if task.spec else 1

    @property
    def num_ps_replicas(self) -> int:
        """Parameter servers; 0 in an evaluator."""
        return len(ps_of(self.cluster_spec))

    @property
    def master(self) -> str:
        """Address of this task as TensorFlow writes it, or TF_CONFIG's ``session_master``.

        Empty in an evaluator, and where one task is the whole cluster. Nothing here dials it.
        """
        task = self.task
        if task.task.type == EVALUATOR:
            return ""
        master = read_tf_config().get("session_master")
        if master is not None:
            return str(master)
        is_one_of_several = len(list(task.spec.tasks())) > 1
        return f"grpc://{task.address}" if task.address and is_one_of_several else ""

    @property
    def evaluation_master(self) -> str:
        """TF_CONFIG's ``eval_session_master`` in an evaluator and a process alone, else empty."""
        task = self.task
        if task.task.type != EVALUATOR and task.spec:
            return ""
        return str(read_tf_config().get("eval_session_master", ""))

    @property
    def service(self) -> Any:
        """TF_CONFIG's ``service``, which nothing here reads; None: it has none."""
        return read_tf_config().get("service")

    @property
    def global_id_in_cluster(self) -> int | None:
        """Number among all tasks: the chief, workers, then ps; None in an evaluator."""
        task = self.task
        if task.task.type == EVALUATOR:
            return None
        if not task.spec:
            return 0
        order = {CHIEF: 0, WORKER: 1, PS: 2}
        tasks = sorted(task.spec.tasks(), key=lambda member: (order[member.type], member.index))
        return tasks.index(task.task)

    def check_cluster(self) -> None:
        """Check that the cluster is one that can train.

        Raises:
            ConfigurationError: Without ``train_distribute`` it has no chief.
        """
        task = self.task
        if not task.spec or task.is_local or self.train_distribute is not None:
            return
        if CHIEF not in task.spec.jobs and not task.dynamic:
            raise ConfigurationError(
                'If "cluster" is set in TF_CONFIG, it must have one "chief" node, unless RunConfig '
                f"has a train_distribute; this one has {', '.join(task.spec.jobs)}"
            )


def _check_device_fn(device_fn: Any) -> None:
    """Check that it is what TensorFlow would take.

    Raises:
        ConfigurationError: It is not.
    """
    if device_fn is None:
        return
    if not callable(device_fn) or list(inspect.signature(device_fn).parameters) != ["op"]:
        raise ConfigurationError('device_fn must be callable with exactly one argument "op".')


def _model_dir(from_program: str | None, config: Mapping[str, Any]) -> str | None:
    """Find the model directory that a program or TF_CONFIG names, or both.

    Raises:
        ConfigurationError: They differ, or one is empty.
    """
    if from_program == "":
        raise ConfigurationError("model_dir is empty; give a path, or None")
    from_config = config.get("model_dir")
    if from_config == "":
        raise ConfigurationError("model_dir in TF_CONFIG is empty; give a path, or leave it out")
    from_program = None if from_program is None else os.fspath(from_program)
    if from_program is not None and from_config is not None and from_program != str(from_config):
        raise ConfigurationError(
            "`model_dir` provided in RunConfig construct, if set, must have the same value as the "
            f"model_dir in TF_CONFIG. model_dir: {from_program}, "
            f'TF_CONFIG["model_dir"]: {from_config}'
        )
    return from_program if from_config is None else str(from_config)
