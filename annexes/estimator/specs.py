"""TrainSpec and EvalSpec: what ``train_and_evaluate`` trains with and evaluates on."""

from collections.abc import Sequence
from typing import Any

from ...core.errors import ConfigurationError
from .exporters import Exporter
from .hooks import CheckpointSaverListener, SessionRunHook
from .inputs import InputFn


class TrainSpec:
    """The arguments of a training, as ``tf.estimator.TrainSpec``.

    Args:
        input_fn: Input function of the training.
        max_steps: The global step at which it ends; None: it ends with its input.
        hooks: Hooks of every task that trains.
        saving_listeners: Listeners to the chief's checkpoints.

    Raises:
        ConfigurationError: ``max_steps`` is not positive.
        TypeError: An argument is of the wrong type.
    """

    def __init__(
        self,
        input_fn: InputFn,
        max_steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        saving_listeners: Sequence[CheckpointSaverListener] | None = None,
    ) -> None:
        if not callable(input_fn):
            raise TypeError(f"`input_fn` must be callable, given: {input_fn!r}")
        if max_steps is not None and max_steps <= 0:
            raise ConfigurationError(f"Must specify max_steps > 0, given: {max_steps}")
        self.input_fn, self.max_steps = input_fn, max_steps
        self.hooks = _checked(hooks, SessionRunHook, "hooks")
        self.saving_listeners = _checked(
            saving_listeners, CheckpointSaverListener, "saving_listeners"
        )


class EvalSpec:
    """The arguments of an evaluation, as ``tf.estimator.EvalSpec``.

    Args:
        input_fn: Input function of the evaluation.
        steps: Batches of each evaluation; None: until the input ends.
        name: Name of the evaluation; results go to ``eval_<name>``.
        hooks: Hooks of each evaluation.
        exporters: Exporters, or a single one, called after each evaluation.
        start_delay_secs: Delay before the evaluator's first evaluation.
        throttle_secs: Minimum time from the beginning of one evaluation to that of the next.

    Raises:
        ConfigurationError: A number is negative, ``steps`` is not positive, or two exporters have
            one name.
        TypeError: An argument is of the wrong type.
    """

    def __init__(
        self,
        input_fn: InputFn,
        steps: int | None = 100,
        name: str | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        exporters: Exporter | Sequence[Exporter] | None = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> None:
        if not callable(input_fn):
            raise TypeError(f"`input_fn` must be callable, given: {input_fn!r}")
        if steps is not None and steps <= 0:
            raise ConfigurationError(f"Must specify steps > 0, given: {steps}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be string, given: {name!r}")
        for what, value in (
            ("start_delay_secs", start_delay_secs), ("throttle_secs", throttle_secs),
        ):  # fmt: skip
            if value < 0:
                raise ConfigurationError(f"Must specify {what} >= 0, given: {value}")
        self.input_fn, self.steps, self.name = input_fn, steps, name
        self.hooks = _checked(hooks, SessionRunHook, "hooks")
        several = (exporters,) if isinstance(exporters, Exporter) else exporters
        self.exporters = _checked(several, Exporter, "exporters")
        names = [exporter.name for exporter in self.exporters]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"`exporters` must have unique names, they have {names}")
        self.start_delay_secs, self.throttle_secs = start_delay_secs, throttle_secs


def _checked(objects: Any, kind: type, name: str) -> list[Any]:
    checked = list(objects or ())
    for item in checked:
        if not isinstance(item, kind):
            raise TypeError(f"All {name} must be {kind.__name__}s, given: {item!r}")
    return checked
