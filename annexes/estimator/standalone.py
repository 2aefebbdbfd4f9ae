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

from ...core import annexes
from ...core.checkpoint import CheckpointReader
from ...core.errors import ConfigurationError, OutOfRangeError
from ...distribute.coordinator.cluster_coordinator import ClusterCoordinator
from ...distribute.coordinator.remote_value import RemoteValue
from ...distribute.strategies.parameter_server import ParameterServerStrategy
from .building import Build, Registry
from .first_values import AsTheyAre, FirstValues
from .hooks import CheckpointSaverListener, HookCalls, RunningModel
from .inputs import features_and_labels, source_of
from .metrics import to_float, to_numpy
from .model_calls import Model
from .saving import Checkpoints, OwnCheckpoints, timer_of, values_writer
from .spec import ModeKeys
from .training_loop import StepCount, TrainCall, values_of

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
    """A training on a standalone cluster.

    Attributes:
        model_fn: The user's model function.
        model_dir: Model directory of the Estimator, on this machine.
        config: Configuration of the Estimator.
        params: Hyperparameters of the Estimator.
        values: First values of variables.
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

    def run(self, address: str, call: TrainCall) -> float:
        """Train, and return the last loss.

        Args:
            address: Address of the cluster.
            call: Arguments of the training. Its input function is called here for the first batch
                and once on each worker; hooks and listeners are called here, where checkpoints are
                written.

        Raises:
            ConfigurationError: The input has no batch, or the cluster no worker.
            RopewalkError: The cluster cannot be joined, or is lost.
        """
        input_fn = call.input_fn
        service = annexes.the("connecting", "service", "training on a standing cluster")
        with service.connect(address) as cluster:
            strategy = ParameterServerStrategy(cluster.resolver)
            registry = Registry()
            step = StepCount(strategy, self.first, of_strategy=False)
            session = RunningModel(strategy, registry.variables, step)
            model = Model(
                self.model_fn,
                ModeKeys.TRAIN,
                self.params,
                self._config_of_workers(),
                strategy,
                Build(registry, self.values, self.resumes),
            )
            loop = _RemoteLoop(
                model,
                session,
                HookCalls(list(call.hooks), session),
                step,
                self._checkpoints(registry, call.listeners, session),
                limit=call.last_step(self.first),
            )
            arguments = {"mode": ModeKeys.TRAIN, "params": self.params}
            return loop.run(
                lambda: source_of(input_fn, {**arguments, "config": self.config}),
                lambda: source_of(input_fn, arguments),
            )

    def _checkpoints(
        self,
        registry: Registry,
        listeners: Sequence[CheckpointSaverListener],
        session: RunningModel,
    ) -> Checkpoints:
        """Make what saves the variables of a registry here, as the configuration says."""

        def checkpoints_in(directory: str) -> OwnCheckpoints:
            keep = self.config.keep_checkpoint_max or 0
            return OwnCheckpoints(directory, values_writer(registry.variables), keep)

        own = checkpoints_in(self.model_dir)
        own.prepare()
        session.saving = checkpoints = Checkpoints(
            self.model_dir,
            own,
            timer_of(self.config),
            list(listeners),
            session,
            checkpoints_in,
        )
        return checkpoints

    def _config_of_workers(self) -> "RunConfig":
        return self.config.replace(
            train_distribute=None, eval_distribute=None, experimental_distribute=None
        )


@dataclass
class _RemoteLoop:
    """The steps of one training: the first is made here, the others on workers.

    Attributes:
        model: Model, called here and on each worker.
        session: The running model that hooks get as their session.
        hooks: All hooks, which are called here.
        step: Counter of the global step.
        checkpoints: Saves checkpoints, and tells listeners.
        limit: Global step at which the training ends; None: no such limit.
    """

    model: Model
    session: RunningModel
    hooks: HookCalls
    step: StepCount
    checkpoints: Checkpoints
    limit: int | None

    def run(self, source: Callable[[], Any], source_of_worker: Callable[[], Any]) -> float:
        """Train; the last loss.

        Args:
            source: Returns the batches of which the first is used here.
            source_of_worker: Returns the batches of a worker, called on each.

        Raises:
            ConfigurationError: The input has no batch, or the cluster no worker.
            RopewalkError: The cluster is lost.
        """
        self.hooks.begin()
        self.checkpoints.begin()
        loss = self._first_step(source)
        results = self._results(source_of_worker)
        while not self._ends():
            self.hooks.before_run()
            result = next(results, None)
            if result is None:
                log.info("the input of a worker has ended")
                break
            loss, recorded = result
            self.step.note_step()
            step = self.step()
            self.hooks.after_run({**recorded, "loss": loss, "global_step": step})
            self.session.ending = self.limit is not None and step >= self.limit
            self.checkpoints.after_step(step)
        self.session.ending = True
        self.checkpoints.end(self.step())
        self.hooks.end()
        return loss

    def _ends(self) -> bool:
        """Return whether the training ends before the next step."""
        return self.session.should_stop() or self._left() == 0

    def _left(self) -> int | None:
        """Count the steps until the limit; None: there is none."""
        return None if self.limit is None else max(self.limit - self.step(), 0)

    def _first_step(self, source: Callable[[], Any]) -> float:
        element = next(iter(source()), None)
        if element is None:
            raise ConfigurationError("input_fn returned no batch, so nothing was trained")
        self.hooks.before_run()
        called = self.model.call(*features_and_labels(element))
        self.step.note_step()
        spec = called[0].spec
        self.hooks.model_called((*spec.training_chief_hooks, *spec.training_hooks))
        loss = float(np.mean([part.loss for part in called]))
        self.hooks.after_run(values_of(called, loss, self.step()))
        return loss

    def _results(self, source: Callable[[], Any]) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield (loss, recorded) of the workers' steps, in the order in which they were
        scheduled.
        """
        strategy = self.model.strategy
        assert isinstance(strategy, ParameterServerStrategy)  # noqa: S101 - a training makes it
        coordinator = ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(source))
        registry = Registry()
        registry.variables.update(self.model.build.registry.variables)
        step = RemoteStep(replace(self.model, build=Build(registry, AsTheyAre())))
        workers = len(strategy.extended.runtime.task.spec.task_indices("worker"))
        waiting: deque[RemoteValue] = deque()
        while True:
            # Those that wait count: they will have been made when their turn comes.
            wanted, most = _WAITING * workers, self._left()
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
