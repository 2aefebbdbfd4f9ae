"""Hooks: what a program wants to be called for during a training, an evaluation or a prediction.

As ``tf.compat.v1.train.SessionRunHook``: :meth:`~SessionRunHook.begin` before anything is made,
:meth:`~SessionRunHook.after_create_session` when the variables are there,
:meth:`~SessionRunHook.before_run` and :meth:`~SessionRunHook.after_run` around every step, and
:meth:`~SessionRunHook.end` if nothing was raised. There is no session; what stands in its place is
a :class:`RunningModel`.

A hook that model_fn gives is made anew for every batch. The first one stays; from each later one
it is handed the values of its batch (:meth:`~SessionRunHook.renew`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ...core.errors import ConfigurationError, UnknownVariableError
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable

# -- Every so many steps, or so many seconds: when something is due. Pure -----------------------


class SecondOrStepTimer:
    """Says when something is due again. As ``tf.compat.v1.train.SecondOrStepTimer``.

    Args:
        every_secs: Seconds between two times; None: not by seconds.
        every_steps: Steps between two times; None: not by steps.
        clock: The time in seconds.

    Raises:
        ConfigurationError: Both are given, or one is not positive.
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every_secs is not None and every_steps is not None:
            raise ConfigurationError(
                f"every_secs={every_secs} and every_steps={every_steps}: give one of them"
            )
        for name, value in (("every_secs", every_secs), ("every_steps", every_steps)):
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name}={value}: it must be positive")
        self._every_secs, self._every_steps = every_secs, every_steps
        self._clock = clock
        self._step: int | None = None
        self._at = 0.0

    def is_due(self, step: int) -> bool:
        """Return whether it is time, at the first step as well; never twice in one step."""
        if self._step is None:
            return True
        if step == self._step:
            return False
        if self._every_steps is not None and step >= self._step + self._every_steps:
            return True
        return self._every_secs is not None and self._clock() >= self._at + self._every_secs

    def note(self, step: int) -> tuple[float, int] | None:
        """Note that it was done at this step; returns seconds and steps since the last time, None
        the first time.
        """
        now, before = self._clock(), self._step
        since = None if before is None else (now - self._at, step - before)
        self._step, self._at = step, now
        return since


class Saving(Protocol):
    """A way for a hook to say when a training saves."""

    model_dir: str

    def use(self, timer: SecondOrStepTimer, listeners: "list[CheckpointSaverListener]") -> None:
        """Save when this timer says so, and tell these."""

    def elsewhere(
        self, directory: str, timer: SecondOrStepTimer, listeners: "list[CheckpointSaverListener]"
    ) -> "SavingElsewhere | None":
        """Save to another directory as well; None: this task does not."""


class SavingElsewhere(Protocol):
    """Asked after every step whether it is time."""

    def after_step(self, step: int) -> None:
        """Save if it is time."""

    def end(self, step: int) -> None:
        """Save what was not saved yet."""


class RunningModel:
    """The model being trained, evaluated or used, which hooks get as their session.

    Args:
        strategy: Strategy under which it runs.
        variables: Variables by name; filled when model_fn is first called.
        global_step: Returns the global step.
        is_chief: Whether this task leads.

    Attributes:
        strategy: Strategy that the constructor was given.
        is_chief: Whether this task leads.
        ending: Whether the last step was made.
        saving: Object that saves the checkpoints of a training.
    """

    def __init__(
        self,
        strategy: Strategy,
        variables: Mapping[str, Variable],
        global_step: Callable[[], int],
        *,
        is_chief: bool = True,
    ) -> None:
        self.strategy = strategy
        self.is_chief = is_chief
        self._variables = variables
        self._global_step = global_step
        self._stop = False
        self.ending = False
        self.saving: Saving | None = None

    @property
    def global_step(self) -> int:
        """Global step as far as this worker knows; in an evaluation the checkpoint's."""
        return self._global_step()

    @property
    def variables(self) -> Mapping[str, Variable]:
        """Variables by name."""
        return self._variables

    def read(self, name: str) -> Any:
        """Read a variable's value as of now, a copy.

        Raises:
            UnknownVariableError: model_fn has made none of this name.
        """
        if name not in self._variables:
            names = ", ".join(map(repr, list(self._variables)[:8]))
            raise UnknownVariableError(
                f"model_fn has made no variable {name!r}; it has made {names}", variable=name
            )
        return self._variables[name].numpy()

    def request_stop(self) -> None:
        """End after this step."""
        self._stop = True

    def should_stop(self) -> bool:
        """Return whether a hook has asked to stop."""
        return self._stop


@dataclass(frozen=True, slots=True)
class SessionRunArgs:
    """The wishes of a hook in a step: names, nested in dicts, lists and tuples.

    A name is ``loss``, ``global_step``, or that of a prediction or of what :func:`record` was
    given.
    """

    fetches: Any


@dataclass(frozen=True, slots=True)
class SessionRunValues:
    """The values of a step that a hook sees.

    Attributes:
        results: Values that the hook's ``SessionRunArgs`` asked for; None if it asked for nothing.
        values: All there is, by name.
    """

    results: Any
    values: Mapping[str, Any] = field(default_factory=dict)


class SessionRunContext:
    """Around a step.

    Attributes:
        session: Model that is running.
    """

    def __init__(self, session: RunningModel) -> None:
        self.session = session

    def request_stop(self) -> None:
        """End after this step."""
        self.session.request_stop()

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked to stop."""
        return self.session.should_stop()


class SessionRunHook:
    """Derive from this, and define what you want to be called for."""

    def begin(self) -> None:
        """Begin before the first step; nothing was made yet."""

    def after_create_session(self, session: RunningModel, coord: Any) -> None:
        """Handle that the variables are there: behind the first call of model_fn.

        Args:
            session: Model that is running.
            coord: Always None; TensorFlow has threads here.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:  # noqa: ARG002
        """Handle the beginning of a step; not before the first one, for a hook that model_fn
        gives.
        """
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Handle the end of a step."""

    def end(self, session: RunningModel) -> None:
        """End after the last step; not if an error was raised."""

    def renew(self, newer: "SessionRunHook") -> None:
        """Take over from a hook that model_fn made in this one's place, for a later batch."""


class CheckpointSaverListener:
    """A listener like ``tf.compat.v1.train.CheckpointSaverListener``: called when a checkpoint was
    saved.

    On the chief. Of a job that saves by itself (docs/checkpoints.md) a checkpoint is noticed at the
    end of the step after it, and ``before_save`` is called then, too.
    """

    def begin(self) -> None:
        """Begin before the first step."""

    def before_save(self, session: RunningModel, global_step_value: int) -> None:
        """Handle that a checkpoint will be written."""

    def after_save(self, session: RunningModel, global_step_value: int) -> Any:
        """Handle that a checkpoint was written; True: end the training."""

    def end(self, session: RunningModel, global_step_value: int) -> None:
        """End after the last step."""


class HookCalls:
    """Calls several hooks of one run, in order.

    Args:
        hooks: Hooks of the caller.
        session: The running model.
    """

    def __init__(self, hooks: list[SessionRunHook], session: RunningModel) -> None:
        self._hooks = list(hooks)
        self._session = session
        self._given: list[SessionRunHook] = []  # by model_fn
        self._context = SessionRunContext(session)
        self._asked: dict[int, Any] = {}
        self._created = False

    def begin(self) -> None:
        """Call the hooks before the first step."""
        for hook in self._hooks:
            hook.begin()

    def before_run(self) -> None:
        """Call the hooks before a step."""
        self._asked = {}
        for hook in self._all:
            wanted = hook.before_run(self._context)
            if wanted is not None:
                self._asked[id(hook)] = wanted.fetches

    def model_called(self, given: tuple[SessionRunHook, ...]) -> None:
        """Call the hooks when model_fn has returned.

        Args:
            given: The hooks it gave.
        """
        if self._created:
            for kept, newer in zip(self._given, given, strict=False):
                if kept is not newer:
                    kept.renew(newer)
            return
        self._created, self._given = True, list(given)
        for hook in self._given:
            hook.begin()
        for hook in self._all:
            hook.after_create_session(self._session, None)

    def after_run(self, values: Mapping[str, Any]) -> None:
        """Call the hooks after a step.

        Raises:
            UnknownVariableError: A hook asked for a value that the step has not.
        """
        for hook in self._all:
            asked = self._asked.get(id(hook))
            results = _fetched(asked, values) if asked is not None else None
            hook.after_run(self._context, SessionRunValues(results, values))

    def end(self) -> None:
        """Call the hooks after the last step."""
        for hook in self._all:
            hook.end(self._session)

    @property
    def _all(self) -> list[SessionRunHook]:
        return [*self._hooks, *self._given]


def _fetched(wanted: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(wanted, str):
        return value_of(wanted, values)
    if isinstance(wanted, Mapping):
        return {key: _fetched(part, values) for key, part in wanted.items()}
    if isinstance(wanted, list | tuple):
        return [_fetched(part, values) for part in wanted]
    return wanted  # a value that model_fn gave


def value_of(name: str, values: Mapping[str, Any]) -> Any:
    """Find a value of a step.

    Raises:
        UnknownVariableError: The step has none of this name.
    """
    try:
        return values[name]
    except KeyError:
        raise UnknownVariableError(
            f"a hook asks for {name!r}, and the step has {', '.join(map(repr, values))}; "
            f"rw.estimator.record({name!r}, value) in model_fn gives it",
            variable=name,
        ) from None


# -- Arguments of an Estimator's methods, checked as TensorFlow checks them --------------------

_Kind = TypeVar("_Kind")


def check_steps(steps: int | None, max_steps: int | None) -> None:
    """Check that a training can be bounded so.

    Raises:
        ConfigurationError: Both are given, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise ConfigurationError("Can not provide both steps and max_steps.")
    if steps is not None and steps <= 0:
        raise ConfigurationError(f"Must specify steps > 0, given: {steps}")
    if max_steps is not None and max_steps <= 0:
        raise ConfigurationError(f"Must specify max_steps > 0, given: {max_steps}")


def check_hooks(hooks: Sequence[SessionRunHook] | None) -> list[SessionRunHook]:
    """Check hooks, and return them.

    Raises:
        TypeError: One is none.
    """
    return all_of(SessionRunHook, hooks, "Hooks must be a SessionRunHook, given: {!r}")


def check_listeners(
    listeners: Sequence[CheckpointSaverListener] | None,
) -> list[CheckpointSaverListener]:
    """Check listeners, and return them.

    Raises:
        TypeError: One is none.
    """
    wanted = "saving_listeners must be CheckpointSaverListener, given: {!r}"
    return all_of(CheckpointSaverListener, listeners, wanted)


def all_of(kind: type[_Kind], given: Sequence[_Kind] | None, message: str) -> list[_Kind]:
    """Check that all objects that were given are of one kind, and list them.

    Args:
        kind: Class of the objects.
        given: Any number of them; None: there are none.
        message: Message of the error, with a place for an object that is of another kind.

    Raises:
        TypeError: One is of another kind.
    """
    objects = list(given or ())
    for item in objects:
        if not isinstance(item, kind):
            raise TypeError(message.format(item))
    return objects
