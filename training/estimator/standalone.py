"""Training from here on a standing cluster elsewhere: ``DistributeConfig(remote_cluster=…)``.

TensorFlow's standalone client ran a thread for every worker. Here the program joins a standalone
cluster as the chief of a job of its own (docs/standalone.md): its servers keep the variables, and
its workers run model_fn, each on input of its own. This process makes the first step, which makes
the variables, schedules the others, and does what a chief does: hooks, checkpoints, evaluations.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.checkpoint import CheckpointReader
from ...core.errors import ConfigurationError, OutOfRangeError
from ...distribute.coordinator.cluster_coordinator import ClusterCoordinator
from ...distribute.coordinator.remote_value import RemoteValue
from ...distribute.strategies.parameter_server import ParameterServerStrategy
from .arrays import to_float, to_numpy
from .building import Build, Registry
from .checkpoint_times import Checkpoints
from .first_values import AsTheyAre, FirstValues
from .hooks import CheckpointSaverListener, HookCalls, RunningModel, SessionRunHook
from .inputs import InputFn, features_and_labels, source_of
from .model_calls import Model
from .modes import ModeKeys
from .saving import OwnCheckpoints, values_writer
from .timers import SecondOrStepTimer
from .training_loop import StepCount, values_of

if TYPE_CHECKING:
    from .run_config import RunConfig

log = logging.getLogger(__name__)

_WAITING = 4  # closures per worker that are scheduled ahead


@dataclass(frozen=True)
class RemoteStep:
    """A step on a worker. What it makes by ``once`` stays there from closure to closure."""

    model: Model

    def __call__(self, iterator: Iterator[Any]) -> tuple[float, dict[str, Any]]:
        """Make a step with the worker's next batch; its loss, and what model_fn recorded."""
        called = self.model.call(*features_and_labels(next(iterator)))
        recorded = {name: to_numpy(value) for name, value in called[0].recorded.items()}
        return float(np.mean([to_float(part.loss) for part in called])), recorded


@dataclass
class RemoteTraining:
    """One training on a standalone cluster.

    Attributes:
        model_fn: The user's model function.
        model_dir: Model directory of the Estimator, on this machine.
        config: Configuration of the Estimator.
        params: Hyperparameters of the Estimator.
        values: What variables begin with.
        first: The global step of these values.
        resumes: The checkpoint they come from; None: there is none.
    """

    model_fn: Callable[..., Any]
    model_dir: str
    config: "RunConfig"
    params: Any
    values: FirstValues
    first: int
    resumes: CheckpointReader | None

    def run(
        self,
        address: str,
        input_fn: InputFn,
        hooks: Sequence[SessionRunHook],
        listeners: Sequence[CheckpointSaverListener],
        *,
        steps: int | None,
        max_steps: int | None,
    ) -> float:
        """Train, and return the last loss.

        Args:
            address: Address of the cluster.
            input_fn: Input function, called here for the first batch and once on each worker.
            hooks: Hooks, which are called here.
            listeners: Listeners to the checkpoints, which are written here.
            steps: Number of further steps.
            max_steps: Global step at which the training ends.

        Raises:
            ConfigurationError: The input has no batch, or the cluster no worker.
            WindlassError: The cluster cannot be joined, or is lost.
        """
        from ...worker.connecting import connect  # loads what no other training needs

        limit = max_steps if max_steps is not None else steps and self.first + steps
        with connect(address) as cluster:
            strategy = ParameterServerStrategy(cluster.resolver)
            registry = Registry()
            step = StepCount(strategy, self.first, of_strategy=False)
            session = RunningModel(strategy, registry.variables, step)

            def checkpoints_in(directory: str) -> OwnCheckpoints:
                keep = self.config.keep_checkpoint_max or 0
                return OwnCheckpoints(directory, values_writer(registry.variables), keep)

            own = checkpoints_in(self.model_dir)
            own.prepare()
            timer = SecondOrStepTimer(
                self.config.save_checkpoints_secs or None,
                self.config.save_checkpoints_steps or None,
            )
            checkpoints = Checkpoints(
                self.model_dir, own, timer, list(listeners), session, checkpoints_in
            )
            session.saving = checkpoints
            calls = HookCalls(list(hooks), session)
            model = Model(
                self.model_fn,
                ModeKeys.TRAIN,
                self.params,
                self._config_of_workers(),
                strategy,
                Build(registry, self.values, self.resumes),
            )
            calls.begin()
            checkpoints.begin()
            loss = self._first_step(model, input_fn, calls, step)
            results = self._results(
                model, input_fn, lambda: None if limit is None else limit - step()
            )
            while not (session.should_stop() or (limit is not None and step() >= limit)):
                calls.before_run()
                found = next(results, None)
                if found is None:
                    log.info("the input of a worker has ended")
                    break
                loss, recorded = found
                step.note_step()
                calls.after_run({**recorded, "loss": loss, "global_step": step()})
                session.ending = limit is not None and step() >= limit
                checkpoints.after_step(step())
            session.ending = True
            checkpoints.end(step())
            calls.end()
        return loss

    def _config_of_workers(self) -> "RunConfig":
        return self.config.replace(
            train_distribute=None, eval_distribute=None, experimental_distribute=None
        )

    def _source(self, input_fn: InputFn) -> Any:
        known = {"mode": ModeKeys.TRAIN, "params": self.params, "config": self.config}
        return source_of(input_fn, known)

    def _first_step(
        self, model: Model, input_fn: InputFn, calls: HookCalls, step: StepCount
    ) -> float:
        element = next(iter(self._source(input_fn)), None)
        if element is None:
            raise ConfigurationError("input_fn returned no batch, so nothing was trained")
        calls.before_run()
        called = model.call(*features_and_labels(element))
        step.note_step()
        spec = called[0].spec
        calls.model_called((*spec.training_chief_hooks, *spec.training_hooks))
        loss = float(np.mean([part.loss for part in called]))
        calls.after_run(values_of(called, loss, step()))
        return loss

    def _results(
        self, model: Model, input_fn: InputFn, left: Callable[[], int | None]
    ) -> Iterator[tuple[float, dict[str, Any]]]:
        """(loss, recorded) of the workers' steps, in the order in which they were scheduled."""
        strategy = model.strategy
        assert isinstance(strategy, ParameterServerStrategy)  # noqa: S101 - run makes it
        coordinator = ClusterCoordinator(strategy)
        known = {"mode": ModeKeys.TRAIN, "params": self.params}
        dataset = coordinator.create_per_worker_dataset(lambda: source_of(input_fn, known))
        iterator = iter(dataset)
        registry = Registry()
        registry.variables.update(model.build.registry.variables)
        on_workers = replace(model, build=Build(registry, AsTheyAre()))
        workers = len(strategy.extended.runtime.task.spec.task_indices("worker"))
        waiting: deque[RemoteValue] = deque()
        step = RemoteStep(on_workers)
        while True:
            # Those that wait count: they will have been made when their turn comes.
            wanted, most = _WAITING * workers, left()
            if most is not None:
                wanted = min(wanted, most)
            while len(waiting) < wanted:
                waiting.append(coordinator.schedule(step, args=(iterator,)))
            if not waiting:
                return
            try:
                yield waiting.popleft().fetch()
            except OutOfRangeError:
                return
