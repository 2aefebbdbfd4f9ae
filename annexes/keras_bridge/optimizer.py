"""Place of an optimizer of Keras, the rate that it has now, and its state if it runs here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError, NonFiniteGradientError
from ...core.rules.update_rules import OnServer, OnWorker, Place
from ...distribute.optimizer import Optimizer
from ...distribute.strategies.strategy import Strategy
from ...training.kept_state import KeptState
from ...training.own_optimizer import Deltas, choose_place
from ...training.rule_table import optimizer_of, place_keras
from ...training.update_count import UpdateCount, counted_by
from .frameworks import keras
from .loop_state import plainly
from .shared_variables import SharedVariables

# Where Keras keeps which weights do not decay; no config says it.
_EXCLUDED = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


class StateOfOptimizer(Protocol):
    """The state of an optimizer that runs on this worker.

    Attributes:
        optimizer: Optimizer whose state it is now; may be replaced by another one of its kind.
    """

    optimizer: Any

    def kept(self, strategy: Strategy, prefix: str) -> KeptState | None:
        """Make the state as the job's checkpoints have it; None: there is nothing to keep."""

    def now(self, values: Callable[[], Sequence[Any]] | None, /) -> Mapping[str, Any] | None:
        """Read what the optimizer has, by name; None: its state has another form than it had at
        first.

        Args:
            values: Returns the values of all variables of an optimizer of Keras; None: it has them.
        """


class OptimizerTrainer(Protocol):
    """An optimizer that trains shared weights: of Keras, or of the framework below it.

    Attributes:
        worker_reason: Why it runs on this worker; None: it runs on the servers.
        settings: Settings that must stay as they were for the state on the servers to go on.
        server_state: Description of what the servers keep besides the weights, for people; empty:
            nothing.
    """

    worker_reason: str | None
    settings: Mapping[str, Any]
    server_state: str

    def rules(self, variables: Mapping[str, Any]) -> dict[str, Optimizer]:
        """Find the rule of each of these variables of Keras, by name; none on the worker."""

    def own_state(self, array: Callable[[Any], Array]) -> StateOfOptimizer:
        """Make the state of the optimizer, where it runs on this worker.

        Args:
            array: Returns a variable's value on the host.
        """


class KerasTrainer:
    """An optimizer of Keras as a :class:`OptimizerTrainer`.

    Args:
        optimizer: Optimizer of Keras, or one with the same interface.
        trained: The variables that it updates.
        deltas: Whether it may run on the worker.
        shared: Variables that other optimizers train.

    Raises:
        ConfigurationError: As :func:`place_optimizer` does.
    """

    def __init__(
        self, optimizer: Any, trained: Sequence[Any], deltas: Deltas, shared: SharedVariables
    ) -> None:
        self._optimizer, self._trained = optimizer, trained
        self.settings = settings_of(optimizer)
        place = place_optimizer(optimizer, trained, deltas, shared)
        self.worker_reason = place.reason if isinstance(place, OnWorker) else None
        self._rule = optimizer_of(place) if isinstance(place, OnServer) else None
        self.server_state = "" if self._rule is None else _state_of(optimizer, self._rule)

    def rules(self, variables: Mapping[str, Any]) -> dict[str, Optimizer]:
        """Find one rule for all variables."""
        return {} if self._rule is None else dict.fromkeys(variables, self._rule)

    def set_rate(self, rate: float) -> None:
        """Have the rule go on with another rate; on the worker the optimizer has it itself."""
        if self._rule is not None and self._rule.learning_rate != rate:
            self._rule.learning_rate = rate

    def count_of_schedule(self, prefix: str, strategy: Strategy) -> UpdateCount | None:
        """Find what the schedule goes by, where the strategy counts the steps of all models.

        Args:
            prefix: Prefix of the count's name, with a slash at its end.
            strategy: Strategy of the weights.
        """
        rate, rule = self._optimizer._learning_rate, self._rule
        if rule is None or not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return None
        return counted_by(strategy, prefix, rule, _rate(self._optimizer))

    def follow_schedule_from(self, before: int) -> None:
        """Have the rule's rate be that of so many updates more than the strategy counts."""
        rate = self._optimizer._learning_rate
        is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        if before and self._rule is not None and is_schedule:
            self._rule.learning_rate = lambda step: float(rate(step + before))

    def own_state(self, array: Callable[[Any], Array]) -> "OwnState":
        """Collect the optimizer's variables."""
        return OwnState(self._optimizer, self._trained, array)


def _state_of(optimizer: Any, rule: Optimizer) -> str:
    """Describe what servers keep for an optimizer besides weights, for people."""
    scheduled = isinstance(
        getattr(optimizer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule
    )
    parts = ["moments"] * bool(rule.rule.slot_start()) + ["step of the schedule"] * scheduled
    return " and the ".join(parts)


def place_optimizer(
    optimizer: Any, weights: Sequence[Any], deltas: Deltas, shared: SharedVariables
) -> Place:
    """Choose where an optimizer runs that updates these weights; see :class:`KerasTrainer`.

    Raises:
        ConfigurationError: It has no rule, and deltas are forbidden; or it has made steps already,
            and the servers would begin with a fresh state.
    """
    place = found_place(optimizer, weights)
    other = shared.trained_by_another(optimizer, weights)
    if other is not None:  # the servers keep one state of each
        place = OnWorker(f"updates a weight that another optimizer updates, too ({other!r})")
    place = choose_place(place, deltas, type(optimizer).__name__)
    if isinstance(place, OnServer):
        require_fresh(optimizer)
    return place


def require_fresh(optimizer: Any) -> None:
    """Refuse an optimizer that is to run on the servers, and has a state already.

    Raises:
        ConfigurationError: It has made steps.
    """
    kind, steps = type(optimizer).__name__, int(optimizer.iterations)
    if steps:
        raise ConfigurationError(
            f"this {kind} has made {steps} steps already, and the servers begin with a fresh "
            "state; compile the model with a new one before it is distributed, or make it outside "
            "of the scope and keep its optimizer on the worker: "
            'rw.training.keras.distribute(model, strategy, deltas="always")',
            optimizer=kind,
        )


def found_place(optimizer: Any, weights: Sequence[Any]) -> Place:
    """Find where an optimizer can run, by what it is and what it updates.

    Args:
        optimizer: Optimizer of Keras, or one with the same interface.
        weights: The weights that it updates.
    """
    if not type(optimizer).__module__.startswith("keras."):
        return OnWorker("is not one of keras.optimizers")
    for weight in weights:
        if weight.constraint is not None:
            return OnWorker(f"has a constraint to keep ({weight.path!r})")
        if getattr(weight, "overwrite_with_gradient", False):
            return OnWorker(f"overwrites a weight with its gradient ({weight.path!r})")
    if any(getattr(optimizer, name, None) for name in _EXCLUDED):
        return OnWorker("leaves weights out of its decay (exclude_from_weight_decay)")
    config = dict(optimizer.get_config())
    if "learning_rate" in config:
        config["learning_rate"] = _rate(optimizer)
    return place_keras(type(optimizer).__name__, config)


def _rate(optimizer: Any) -> Any:
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return lambda step: float(rate(step))
    if isinstance(rate, keras.Variable):
        return float(rate.numpy())
    return lambda _: float(rate())


def settings_of(optimizer: Any) -> Mapping[str, Any]:
    """Collect what must stay as it was for its state to go on; a rate that is a number may
    change.
    """
    config = dict(optimizer.get_config())
    config.pop("name", None)
    if isinstance(config.get("learning_rate"), (int, float)):
        config.pop("learning_rate")
    excluded = [getattr(optimizer, name, None) or None for name in _EXCLUDED]
    return {"class": type(optimizer).__name__, "excluded": excluded, **config}


def position_of(optimizer: Any, attribute: str) -> int | None:
    """Find the position of one of its variables in ``optimizer.variables``; None: it is no
    variable.
    """
    wanted = getattr(optimizer, attribute, None)
    for position, variable in enumerate(optimizer.variables):
        if variable is wanted:
            return position
    return None


def require_scale(optimizer: Any, task: str) -> None:
    """End the training of a model whose gradients overflow however little its loss is scaled.

    An optimizer that scales the loss leaves out the step of such a gradient and halves its scale,
    so it would go on for ever without a change. From 32768 it is below 1 after 16 steps.

    Args:
        optimizer: Optimizer of the model, checked only if it scales the loss.
        task: Task whose optimizer it is, for the error message.

    Raises:
        NonFiniteGradientError: The scale is below 1.
    """
    variable = getattr(optimizer, "dynamic_scale", None)
    scale = 1.0 if variable is None else float(keras.ops.convert_to_numpy(variable))
    if scale >= 1:
        return
    raise NonFiniteGradientError(
        f"{task}: gradients were NaN or infinite so often that {type(optimizer).__name__} scales "
        f"the loss by {scale:.3g} (it began with {optimizer.initial_scale:g}): the model has "
        "diverged, and its weights have stayed as they were. Lower the learning rate, clip "
        "gradients, or look for NaN in the input",
        task=task,
    )


class OwnState:
    """Moments, velocities and the number of steps; not the rate, which the program says.

    Args:
        optimizer: The optimizer; it is built here if it was not.
        weights: Weights that it trains.
        array: Returns a variable's value on the host.

    Attributes:
        optimizer: Optimizer whose state it is now.
    """

    def __init__(
        self, optimizer: Any, weights: Sequence[Any], array: Callable[[Any], Array]
    ) -> None:
        if not optimizer.built:
            with plainly():
                optimizer.build(weights)
        self.optimizer = optimizer
        self._array = array
        self._shapes = {n: tuple(v.shape) for n, v in _entries(optimizer).items()}

    def kept(self, strategy: Strategy, prefix: str) -> KeptState:
        """Make the state as the job's checkpoints have it.

        Args:
            strategy: Strategy under which it is kept.
            prefix: Prefix of its names.
        """
        entries = {name: self._array(v) for name, v in _entries(self.optimizer).items()}
        kind = type(self.optimizer).__name__
        return KeptState(entries, self._load, strategy, kind=kind, prefix=prefix)

    def _load(self, entries: Mapping[str, Array]) -> None:
        for name, variable in _entries(self.optimizer).items():
            if name in entries:
                variable.assign(entries[name])

    def now(self, values: Callable[[], Sequence[Any]] | None) -> Mapping[str, Any] | None:
        """Read what the optimizer has, by name; None: its state has another form than it had at
        first.

        Args:
            values: Returns the values of all its variables; None: they are read.
        """
        variables = _entries(self.optimizer)
        if self._shapes != {n: tuple(v.shape) for n, v in variables.items()}:
            return None
        if values is None:
            return {name: self._array(v) for name, v in variables.items()}
        every = dict(zip(map(id, self.optimizer.variables), values(), strict=True))
        return {name: every[id(v)] for name, v in variables.items()}


def _entries(optimizer: Any) -> dict[str, Any]:
    """List its variables by name, in its own order; names alone may repeat.

    Within an epoch on JAX they have no values: what they are is asked, not what they have.
    """
    rate = getattr(optimizer, "_learning_rate", None)
    return {
        f"{number}-{variable.name}": variable
        for number, variable in enumerate(optimizer.variables)
        if variable is not rate and variable.dtype != "string"
    }
