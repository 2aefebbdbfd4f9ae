"""Target of an Estimator's training: its strategy, its model directory, and whether a job saves it.

A task joins its cluster when its first strategy is made. Before that the model directory and how
often to save can be made settings of the task; afterwards they are what the job was started with.
"""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...cluster.spec import EVALUATOR, ps_of
from ...core import annexes
from ...core.errors import ConfigurationError
from ...core.settings import load_settings, set_environment
from ...distribute.job_snapshots import JobSnapshots
from ...distribute.program_cluster import join_cluster, program_cluster
from ...distribute.runtime import ClusterRuntime
from ...distribute.strategies.central_storage import CentralStorageStrategy
from ...distribute.strategies.default import the_default_strategy
from ...distribute.strategies.mirrored import MirroredStrategy
from ...distribute.strategies.parameter_server import (
    ParameterServerExtended,
    ParameterServerStrategy,
)
from ...distribute.strategies.strategy import Strategy
from .run_config import GivenStrategy, RunConfig

log = logging.getLogger(__name__)


def choose_model_dir(given: str | None, config: RunConfig) -> str:
    """Choose the Estimator's model directory.

    Args:
        given: Directory that was given to the Estimator.
        config: May name one, too.

    Raises:
        ConfigurationError: Both name one, and not the same; or one is empty.
    """
    if given == "":
        raise ConfigurationError("model_dir is empty; give a path, or None")
    if given is not None and config.model_dir is not None and given != config.model_dir:
        raise ConfigurationError(
            "`model_dir` are set both in constructor and `RunConfig`, but with different values: "
            f"{given!r} in constructor and {config.model_dir!r} in RunConfig"
        )
    runtime = program_cluster()
    of_settings = runtime.settings if runtime is not None else load_settings()
    chosen = given or config.model_dir or of_settings.model_dir
    if not chosen:
        if not config.task.is_local or config.task.task.type == EVALUATOR:
            raise ConfigurationError(
                "this Estimator has no model_dir, and the tasks of a cluster have to share one: "
                "Estimator(model_dir=…), RunConfig(model_dir=…), or the variable "
                "ROPEWALK_MODEL_DIR",
                task=config.task.task,
            )
        chosen = tempfile.mkdtemp(prefix="ropewalk-estimator-")
        log.info("Using temporary folder as model directory: %s", chosen)
    return chosen if "://" in chosen else os.path.abspath(chosen)


def give_settings(model_dir: str, config: RunConfig) -> None:
    """Make the model directory, and how often to save, settings of a task that has not joined yet.

    What the variables ``ROPEWALK_…`` say already stays.
    """
    if program_cluster() is not None or (
        config.task.is_local and config.task.task.type != EVALUATOR
    ):
        return
    explicit = load_settings().model_fields_set
    wanted: dict[str, Any] = {"model_dir": model_dir}
    if not explicit & {"save_every_s", "save_every_steps"}:
        wanted["save_every_s"] = config.save_checkpoints_secs or 0
        wanted["save_every_steps"] = config.save_checkpoints_steps or 0
    if config.keep_checkpoint_max:
        wanted["keep_checkpoints"] = config.keep_checkpoint_max
    for name, value in wanted.items():
        if name not in explicit:
            set_environment(f"ROPEWALK_{name.upper()}", str(value))


def runtime_of_task(model_dir: str, config: RunConfig) -> ClusterRuntime | None:
    """Find this task's cluster, joined now if need be; None for a process alone. Does not return in
    a ps.
    """
    runtime = program_cluster()
    if runtime is None:
        give_settings(model_dir, config)
        runtime = join_cluster(synchronous=not ps_of(config.task.spec))
    return runtime


def train_strategy(model_dir: str, config: RunConfig) -> Strategy:
    """Choose the strategy that trains, made now unless it was given.

    Raises:
        TypeError: What makes it makes something else.
        RopewalkError: The cluster cannot be joined.
    """
    give_settings(model_dir, config)
    with _no_word_of_model_dir(config):
        return _train_strategy(config)


@contextmanager
def _no_word_of_model_dir(config: RunConfig) -> Iterator[None]:
    """Suppress the warning that ``ROPEWALK_MODEL_DIR`` is unused: the Estimator saves there."""
    stated = load_settings().model_dir
    if not stated or program_cluster() is not None or not config.task.is_local:
        yield
        return
    set_environment("ROPEWALK_MODEL_DIR", "")
    try:
        yield
    finally:
        set_environment("ROPEWALK_MODEL_DIR", stated)


def _train_strategy(config: RunConfig) -> Strategy:
    if config.train_distribute is not None:
        return _made(config.train_distribute, "train_distribute")
    config.check_cluster()
    if ps_of(config.task.spec):
        return ParameterServerStrategy()
    if not config.task.is_local:
        in_sync: Strategy = annexes.the(
            "multi_worker", "ring", "training in sync, without ps,"
        ).MultiWorkerMirroredStrategy()
        return in_sync
    return the_default_strategy()


def eval_strategy(config: RunConfig) -> Strategy:
    """Choose the strategy that evaluates and predicts: on the devices of this process.

    One of several processes is what it is on this machine alone, as TensorFlow configured an
    evaluator's: its variables are a checkpoint's, which are in this process' memory.
    """
    if config.eval_distribute is None:
        return the_default_strategy()
    strategy = _made(config.eval_distribute, "eval_distribute")
    devices = strategy.extended.replica_devices
    on_servers = isinstance(strategy.extended, ParameterServerExtended)
    if not on_servers and strategy.extended.num_replicas_in_sync <= len(devices):
        return strategy
    log.info(
        "eval_distribute is %s: evaluations are of this process, on %s",
        type(strategy).__name__,
        ", ".join(devices),
    )
    if len(devices) == 1:
        return the_default_strategy()
    return CentralStorageStrategy(devices) if on_servers else MirroredStrategy(devices)


def _made(strategy_or_maker: GivenStrategy, name: str) -> Strategy:
    strategy = strategy_or_maker if isinstance(strategy_or_maker, Strategy) else strategy_or_maker()
    if not isinstance(strategy, Strategy):
        raise TypeError(f"{name}() gave a {type(strategy).__name__}, and no strategy")
    return strategy


def job_of(strategy: Strategy, model_dir: str) -> ClusterRuntime | None:
    """Find the job that saves a strategy's variables; None: this process saves them itself.

    Raises:
        ConfigurationError: The job saves elsewhere, or nowhere.
    """
    runtime = program_cluster()
    extended = strategy.extended
    if isinstance(extended, ParameterServerExtended):
        if extended.runtime.alone and runtime is None:
            return None
        runtime = extended.runtime
    elif runtime is None:
        return None
    elif runtime.alone:
        # The job keeps the variables of the program's first strategy that it can save.
        if strategy is the_default_strategy() or not _adopts(runtime.snapshots):
            return None
    elif not extended.experimental_between_graph:
        raise ConfigurationError(
            f"{runtime.task.task}: train_distribute is {type(strategy).__name__}, whose variables "
            "are this process's alone, in a cluster of several tasks. Give "
            "rw.distribute.ParameterServerStrategy, or without ps "
            "rw.distribute.MultiWorkerMirroredStrategy",
            task=runtime.task.task,
        )
    saves_to = runtime.settings.model_dir
    if not saves_to:
        raise ConfigurationError(
            f"{runtime.task.task}: the job has no model directory and saves nothing, the Estimator "
            f"has {model_dir}. Start every task with --model-dir {model_dir} (or "
            f"ROPEWALK_MODEL_DIR); under plain python train_distribute may be a function that "
            "makes the strategy, such as rw.distribute.ParameterServerStrategy: then the job takes "
            "the Estimator's",
            task=runtime.task.task,
        )
    if not same_place(saves_to, model_dir):
        raise ConfigurationError(
            f"{runtime.task.task}: the job saves to {saves_to}, the Estimator's model_dir is "
            f"{model_dir}. Start every task with --model-dir {model_dir}, or leave model_dir out: "
            "then it is the job's",
            task=runtime.task.task,
        )
    return runtime


def _adopts(snapshots: JobSnapshots | None) -> bool:
    return snapshots is not None and snapshots.is_adopted


def same_place(one: str, other: str) -> bool:
    """Return whether two model directories are the same one."""
    if "://" in one or "://" in other:
        return one.rstrip("/") == other.rstrip("/")
    return os.path.realpath(one) == os.path.realpath(other)
