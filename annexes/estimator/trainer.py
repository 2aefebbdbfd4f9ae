"""Basis of ``Estimator.train``: a strategy, what it begins with, and the loop."""

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.checkpoint import CheckpointReader, latest_checkpoint
from ...core.errors import CheckpointError, ConfigurationError, RopewalkError
from ...distribute.checkpoint import Checkpoint
from ...distribute.program_cluster import program_cluster
from ...distribute.runtime import ClusterRuntime
from ...distribute.saved_variables import saved_value
from ...distribute.strategies.default import the_default_strategy
from ...distribute.strategies.parameter_server import ParameterServerExtended
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from .basic_hooks import usual_hooks
from .building import Build, Registry, registry_of
from .first_values import Anew, AsTheyAre, FirstValues, Resumed, WarmStart, WarmStartSettings
from .hooks import HookCalls, RunningModel, SessionRunHook
from .inputs import batches
from .model_calls import Model, ModelFn
from .run_config import SAVE_SECS, RunConfig
from .saving import (
    Checkpoints,
    OwnCheckpoints,
    has_value,
    shared_values,
    shared_values_writer,
    timer_of,
    with_interval_of_hook,
    writer_for,
)
from .spec import ModeKeys
from .training_loop import StepCount, TrainCall, TrainingLoop
from .training_target import job_of, train_strategy

log = logging.getLogger(__name__)

# -- Values of a checkpoint in a process that trains, for a while, and copies of what it trains -

_COPIES = "evaluated"


@contextmanager
def with_checkpoint_values(registry: Registry) -> Iterator[None]:
    """Let the variables of a strategy have other values in the block than those they train with.
    Slots stay as they are.

    Args:
        registry: Registry of the strategy.
    """
    if registry.live_step is None:
        yield
        return
    before = {
        name: saved_value(variable)
        for name, variable in registry.variables.items()
        if has_value(variable)
    }
    try:
        yield
    finally:
        for name, value in before.items():
            registry.variables[name].assign(value)


def write_copy(model_dir: str, variables: Mapping[str, Variable], global_step: int) -> str:
    """Write the values that a job trains as of now, without slots, beside its checkpoints.

    The job writes its own when it is time, and at its end; what this process wants to evaluate now
    is not there yet. Only the newest copy is kept.

    Returns the path.

    Args:
        model_dir: Model directory of the job.
        variables: Variables by name. What replicas count for themselves is left out: all workers
            would have to read it together.
        global_step: The global step, as far as this task knows.
    """
    kept = list(shared_values(variables).values())
    return Checkpoint(kept, keep=1).save(f"{model_dir}/{_COPIES}", global_step)


class Trainer:
    """The trainings of one Estimator, one after the other.

    Args:
        model_fn: The user's model function.
        model_dir: Model directory of the Estimator.
        config: Configuration of the Estimator.
        params: Hyperparameters of the Estimator.
        warm_start: Warm-start settings of the Estimator.
    """

    def __init__(
        self,
        model_fn: ModelFn,
        model_dir: str,
        config: RunConfig,
        params: Mapping[str, Any] | None,
        warm_start: WarmStartSettings | None,
    ) -> None:
        self._model_fn, self._model_dir, self._config = model_fn, model_dir, config
        self._params, self._warm_start = params, warm_start
        self._strategy: Strategy | None = None
        self._own_registry = Registry()  # under the default strategy

    def train(self, call: TrainCall) -> float | None:
        """Train; the loss of the last step, None if there was nothing to do.

        Raises:
            RopewalkError: See ``Estimator.train``.
        """
        config = self._config
        experimental = config.experimental_distribute
        if experimental is not None and experimental.remote_cluster is not None:
            return self._train_remotely(experimental.remote_cluster, call)
        wanted = with_interval_of_hook(config, call.hooks, self._model_dir)
        if self._strategy is None:
            self._strategy = train_strategy(self._model_dir, wanted)
        strategy = self._strategy
        job = job_of(strategy, self._model_dir)
        _tell_of_job(job, wanted)
        newest, registry = newest_checkpoint(self._model_dir), self._registry(strategy)
        saved = newest.manifest.global_step if newest is not None else 0
        if call.is_done_at(max(saved, registry.live_step or 0)):
            log.info("Skipping training since max_steps has already saved.")
            return None
        if config.tf_random_seed is not None:
            random.seed(config.tf_random_seed)
            np.random.seed(config.tf_random_seed)
        values, first = self._first_values(strategy, job, registry, newest)
        step = StepCount(strategy, first, of_strategy=_counts(strategy, job))
        is_chief = bool(strategy.extended.should_checkpoint)
        session = RunningModel(strategy, registry.variables, step, is_chief=is_chief)
        build = Build(registry, values, newest, step)
        checkpoints = Checkpoints(
            self._model_dir,
            self._own_checkpoints(strategy, registry) if job is None else None,
            timer_of(config),
            list(call.listeners) if is_chief else [],
            session,
            lambda directory: self._checkpoints_in(directory, strategy, registry, job),
        )
        session.saving = checkpoints
        loop = TrainingLoop(
            Model(self._model_fn, ModeKeys.TRAIN, self._params, config, strategy, build),
            session,
            HookCalls(self._hooks(call, is_chief=is_chief), session),
            step,
            checkpoints,
            _check_of(job),
            call,
            fresh=first == 0,
        )
        input_batches = batches(
            call.input_fn, strategy, mode=ModeKeys.TRAIN, params=self._params, config=config
        )
        registry.live_step = first
        try:
            return loop.run(input_batches)
        finally:
            registry.live_step = step()

    def _train_remotely(self, address: str, call: TrainCall) -> float | None:
        # Coordinators are of use here alone.
        from .standalone import RemoteTraining

        newest = newest_checkpoint(self._model_dir)
        saved = newest.manifest.global_step if newest is not None else 0
        if call.is_done_at(saved):
            log.info("Skipping training since max_steps has already saved.")
            return None
        values = Resumed(newest) if newest is not None else self._anew()
        training = RemoteTraining(
            self._model_fn, self._model_dir, self._config, self._params, values, saved, newest
        )
        return training.run(address, replace(call, hooks=self._hooks(call, is_chief=True)))

    def _anew(self) -> FirstValues:
        """Choose what variables begin with where there is no checkpoint."""
        warm = self._warm_start
        if warm is None:
            return Anew()
        return WarmStart(warm, _warm_reader(warm.ckpt_to_initialize_from))

    def copy_of_live(self, newest: CheckpointReader | None) -> CheckpointReader | None:
        """Copy what a job trains here and has not saved yet; None: it has.

        Args:
            newest: Newest checkpoint that it has saved.
        """
        strategy = self._strategy
        if strategy is None or not strategy.extended.should_checkpoint:
            return None
        registry = self._registry(strategy)
        live = registry.live_step
        if live is None or (newest is not None and newest.manifest.global_step >= live):
            return None
        if job_of(strategy, self._model_dir) is None or not registry.variables:
            return None
        return CheckpointReader(write_copy(self._model_dir, registry.variables, live))

    def _registry(self, strategy: Strategy) -> Registry:
        if strategy is the_default_strategy():
            return self._own_registry
        return registry_of(strategy, self._model_dir)

    def _first_values(
        self,
        strategy: Strategy,
        job: ClusterRuntime | None,
        registry: Registry,
        newest: CheckpointReader | None,
    ) -> tuple[FirstValues, int]:
        """Choose what variables begin with, and the global step that is of."""
        live, saved = registry.live_step, newest.manifest.global_step if newest is not None else 0
        if live is not None and registry.variables and (job is not None or live == saved):
            return AsTheyAre(), live
        if newest is None:
            return self._anew(), 0
        if job is not None:
            return AsTheyAre(), saved  # it restores them where they are
        log.info("Restoring parameters from %s", newest.path)
        extended = strategy.extended
        if not isinstance(extended, ParameterServerExtended):
            return Resumed(newest), saved
        if registry.variables:
            raise ConfigurationError(
                f"{self._model_dir} has a checkpoint of step {saved}, and the servers in this "
                f"process have the variables of step {live}; make a new strategy for it"
            )
        extended.created.restore_from = newest.path
        return AsTheyAre(), saved

    def _own_checkpoints(self, strategy: Strategy, registry: Registry) -> OwnCheckpoints:
        own = self._checkpoints_in(self._model_dir, strategy, registry, None)
        own.prepare()
        return own

    def _checkpoints_in(
        self, directory: str, strategy: Strategy, registry: Registry, job: ClusterRuntime | None
    ) -> OwnCheckpoints:
        """Make checkpoints in a directory; of a job with the values alone: what replicas count for
        themselves, all workers would have to read together.
        """
        writer = (
            writer_for(strategy, registry.variables)
            if job is None
            else shared_values_writer(registry.variables)
        )
        return OwnCheckpoints(directory, writer, self._config.keep_checkpoint_max or 0)

    def _hooks(self, call: TrainCall, *, is_chief: bool) -> list[SessionRunHook]:
        """Collect the hooks of the configuration, then the program's."""
        usual = usual_hooks(
            model_dir=self._model_dir,
            is_chief=is_chief,
            log_every=self._config.log_step_count_steps,
            summarize_every=self._config.save_summary_steps,
            total_steps=call.max_steps,
        )
        return [*usual, *call.hooks]


def newest_checkpoint(model_dir: str) -> CheckpointReader | None:
    """Open the newest complete checkpoint of a model directory; None: there is none."""
    newest = latest_checkpoint(model_dir)
    return CheckpointReader(newest.path) if newest is not None else None


def _counts(strategy: Strategy, job: ClusterRuntime | None) -> bool:
    """Return whether the strategy's count of steps is the job's."""
    on_servers = isinstance(strategy.extended, ParameterServerExtended)
    return on_servers or (job is not None and hasattr(strategy, "global_step"))


def _check_of(job: ClusterRuntime | None) -> Callable[[], None]:
    runtime = job or program_cluster()
    return runtime.job.check if runtime is not None else lambda: None


def _tell_of_job(job: ClusterRuntime | None, config: RunConfig) -> None:
    """Say that a job saves as it was started to, where the program says something else."""
    if job is None:
        return
    settings = job.settings
    wanted = (config.save_checkpoints_secs or 0.0, config.save_checkpoints_steps or 0)
    if wanted not in ((settings.save_every_s, settings.save_every_steps), (SAVE_SECS, 0)):
        log.info(
            "the job saves every %s, as it was started (--save-every-s, --save-every-steps), not "
            "as RunConfig says",
            f"{settings.save_every_steps} steps"
            if settings.save_every_steps
            else f"{settings.save_every_s:g} s",
        )


def _warm_reader(path: str) -> CheckpointReader:
    newest = latest_checkpoint(path)
    try:
        return CheckpointReader(newest.path if newest is not None else path)
    except RopewalkError as error:
        raise CheckpointError(
            f"there is nothing to warm-start from at {path}: {error}", path=path
        ) from error
