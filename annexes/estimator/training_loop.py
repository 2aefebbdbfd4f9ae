"""The loop of a training: steps until its end is requested, hooks around them, checkpoints."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigurationError
from ...distribute.strategies.strategy import Strategy
from .hooks import CheckpointSaverListener, HookCalls, RunningModel, SessionRunHook
from .inputs import InputFn
from .model_calls import Called, Model, count_examples
from .saving import Checkpoints

log = logging.getLogger(__name__)

# -- Arguments of one call of ``Estimator.train`` -----------------------------------------------


@dataclass(frozen=True)
class TrainCall:
    """The checked arguments of ``Estimator.train``.

    Attributes:
        input_fn: Input function.
        hooks: Hooks of the program.
        listeners: Listeners to the checkpoints.
        steps: Number of further steps of the job; None: no such limit.
        max_steps: Global step at which the training ends; None: no such limit.
    """

    input_fn: InputFn
    hooks: Sequence[SessionRunHook]
    listeners: Sequence[CheckpointSaverListener]
    steps: int | None = None
    max_steps: int | None = None

    def is_done_at(self, step: int) -> bool:
        """Return whether nothing is left to do at a global step."""
        return self.max_steps is not None and step >= self.max_steps

    def last_step(self, first: int) -> int | None:
        """Compute the global step at which a training ends that begins at ``first``; None: with its
        input.
        """
        if self.max_steps is not None:
            return self.max_steps
        return first + self.steps if self.steps is not None else None


class StepCount:
    """The global step: the strategy's where it counts the steps of a job, else our own.

    Args:
        strategy: Strategy that trains.
        first: Global step of the checkpoint it begins with.
        of_strategy: Whether the strategy knows the step of the checkpoint, too.
    """

    def __init__(self, strategy: Strategy, first: int, *, of_strategy: bool) -> None:
        self._strategy = strategy if of_strategy else None
        self._own = first

    def __call__(self) -> int:
        """Return the step, as far as this worker knows."""
        if self._strategy is None:
            return self._own
        # A strategy on servers that has not defined a variable yet knows of no step.
        return max(self._own, int(getattr(self._strategy, "global_step", 0)))

    def note_step(self) -> None:
        """Note a step that was made here."""
        if self._strategy is None:
            self._own += 1


@dataclass
class TrainingLoop:
    """The loop of one training.

    Attributes:
        model: Model, called for every batch.
        session: The running model that hooks get as their session.
        hooks: All hooks: the usual ones, the program's and model_fn's.
        step: Counter of the global step.
        checkpoints: Saves checkpoints, and tells listeners.
        check: Raises if this task should end.
        call: Says when it ends.
        fresh: Whether it begins from nothing: no checkpoint, no variables of an earlier one.
    """

    model: Model
    session: RunningModel
    hooks: HookCalls
    step: StepCount
    checkpoints: Checkpoints
    check: Callable[[], None]
    call: TrainCall
    fresh: bool = True
    _limit_step: int | None = None

    def run(self, batches: Iterator[tuple[Any, Any]]) -> float | None:
        """Train; the last loss, None if there was no batch for it.

        Raises:
            ConfigurationError: The input has no batch at all.
        """
        self.hooks.begin()
        self.checkpoints.begin()
        loss: float | None = None
        self._limit_step = self.call.last_step(self.step())
        for features, labels in batches:
            if self._ends_before(features):
                break
            self.check()
            loss = self._one_step(features, labels, first=loss is None)
            if self.session.ending:
                break
        if loss is None:
            raise ConfigurationError(
                "input_fn returned no batch, so nothing was trained; look at what it reads, and "
                "whether each worker gets a part"
            )
        if limit_step := self._limit_step:
            self._tell_of_early_end(limit_step)
        self.session.ending = True
        self.checkpoints.end(self.step())
        self.hooks.end()
        return loss

    def _tell_of_early_end(self, limit: int) -> None:
        if self.step() < limit and not self.session.should_stop():
            log.info(
                "the input ended at global step %d, before step %d; num_epochs=None or repeat() "
                "makes it endless",
                self.step(),
                limit,
            )

    def _one_step(self, features: Any, labels: Any, *, first: bool) -> float:
        self.hooks.before_run()
        called = self.model.call(features, labels)
        self.step.note_step()
        spec = called[0].spec
        chief_hooks = spec.training_chief_hooks if self.session.is_chief else ()
        if first and spec.scaffold is not None and spec.scaffold.init_fn is not None:
            self._initialize(spec.scaffold)
        self.hooks.model_called((*chief_hooks, *spec.training_hooks))
        loss = float(sum(part.loss for part in called)) / len(called)
        step = self.step()
        self.hooks.after_run(values_of(called, loss, step))
        limit = self._limit_step
        self.session.ending = limit is not None and step >= limit
        self.checkpoints.after_step(step)
        return loss

    def _initialize(self, scaffold: Any) -> None:
        if self.session.is_chief and self.fresh:
            scaffold.init_fn(scaffold, self.session)

    def _ends_before(self, features: Any) -> bool:
        """Return whether the training ends before a step with this batch.

        Because a hook asked for it, or a replica would have an empty batch. Workers in sync end
        together.
        """
        stop, strategy = self.session.should_stop(), self.model.strategy
        if strategy.extended.num_replicas_in_sync == 1:
            return stop
        parts = strategy.experimental_local_results(features)
        empty = any(count_examples(part) == 0 for part in parts)
        return bool(strategy.extended.any_worker(stop or empty))


def values_of(called: tuple[Called, ...], loss: float, step: int) -> dict[str, Any]:
    """Collect what hooks see of a step: the first replica's values, and the mean loss."""
    first = called[0]
    predictions = first.spec.predictions
    named = predictions if isinstance(predictions, dict) else {}
    return {**named, **first.recorded, "loss": loss, "global_step": step}
