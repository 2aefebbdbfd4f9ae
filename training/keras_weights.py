"""The weights of a Keras model on JAX that all workers share, and the step that keeps them so.

Keras makes its functions of a step when they are needed (``make_train_function``); that is where
this module comes in. It compiles the model's own ``train_step`` with an optimizer that hands the
gradients out, pushes these, and gives Keras the values that come back as the weights of the next
step. So a model's own ``train_step``, losses, masks and weights of samples work as they do alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import ConfigurationError
from ..distribute.strategies.default import get_strategy
from ..distribute.strategies.strategy import Strategy
from .array_store import ArrayStore
from .extras import require
from .jax_arrays import on_device
from .keras_callbacks import arguments_here
from .keras_optimizer import place_optimizer, position_of, settings_of
from .own_optimizer import Deltas
from .rule_table import OnServer, OnWorker

keras: Any = require("keras", "keras")

ATTRIBUTE = "_windlass_weights"
"""Of a model: its :class:`SharedWeights`."""


class SharedWeights:
    """The weights of a model under a strategy; ``wl.training.keras.distribute`` makes it.

    Attributes:
        model: Whose they are.
        store: The weights by their paths, such as ``dense/kernel``.
        worker_reason: Why the optimizer runs on this worker; None: it runs on the servers.
    """

    def __init__(
        self, model: Any, strategy: Strategy | None, *, deltas: Deltas, mean: bool, name: str
    ) -> None:
        strategy = strategy if strategy is not None else get_strategy()
        check(model, strategy)
        self._jax = require("jax", "keras")
        self.model = model
        self._is_chief = bool(strategy.extended.should_checkpoint)
        self._prefix = f"{name}/" if name else ""
        place = place_optimizer(model.optimizer, model.trainable_variables, deltas)
        self.worker_reason = place.reason if isinstance(place, OnWorker) else None
        self._rule = place.optimizer() if isinstance(place, OnServer) else None
        self._optimizer, self._settings = model.optimizer, settings_of(model.optimizer)
        self._rate: Any = None  # the array that the rate was last read from
        self._rate_at: int | None = None
        self._iterations_at: int | None = None
        self._trainable: list[str] = []  # in the order of Keras' state
        self._positions: list[tuple[int, str]] = []  # of averages that this worker pushes
        self._variables = self._shared_variables(in_sync=strategy.num_replicas_in_sync > 1)
        self.store = ArrayStore(
            {each: np.asarray(variable.value) for each, variable in self._variables.items()},
            self._rule,
            strategy,
            mean=mean,
        )
        self._values: Mapping[str, Any] = {}  # as they came last
        self._arrays: dict[str, Any] = {}  # of which Keras was given these
        self._load(self.store.pull())
        model.train_function = model.test_function = model.predict_function = None
        # Beside Keras' tracking of attributes, which is for layers and variables.
        for attribute, value in (
            (ATTRIBUTE, self),
            ("fit", self._fit),
            ("make_train_function", self._make_train_function),
            ("make_test_function", self._refreshing("make_test_function")),
            ("make_predict_function", self._refreshing("make_predict_function")),
        ):
            object.__setattr__(model, attribute, value)

    def _shared_variables(self, *, in_sync: bool) -> dict[str, Any]:
        """Floating-point weights by name; workers in sync keep their own averages.

        Of seed generators and counters every worker has its own.
        """
        found: dict[str, Any] = {}
        for variable in self.model.trainable_variables if in_sync else self.model.weights:
            if not keras.backend.is_float_dtype(variable.dtype):
                continue
            name = self._prefix + variable.path
            if name in found:
                raise ConfigurationError(
                    f"two weights of {self.model.name!r} have the path {variable.path!r}; give "
                    "their layers different names",
                    variable=name,
                )
            found[name] = variable
        return found

    # -- values ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Load the weights as they are now, with what other workers have pushed.

        What was loaded or assigned on the chief since (``load_weights``) is given to all workers
        first; on other workers the chief's takes its place.
        """
        self.model.jax_state_sync()  # a callback may call this within an epoch
        if self._is_chief:
            self._publish({name: v.value for name, v in self._variables.items()})
        self._load(self.store.pull())

    def _load(self, values: Mapping[str, Any]) -> None:
        names = list(self._variables)
        self._take(values, names)
        for name in names:
            self._variables[name].assign(self._arrays[name])

    def _take(self, values: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
        """Note what came; returns arrays of JAX for these names."""
        arrays = on_device([values[name] for name in names])
        self._values = values
        self._arrays.update(zip(names, arrays, strict=True))
        return arrays

    def _publish(self, arrays: Mapping[str, Any]) -> None:
        """Overwrite what somebody else than a step has changed."""
        changed = {
            name: np.asarray(array)
            for name, array in arrays.items()
            if array is not self._arrays[name]
            and not np.array_equal(np.asarray(array), self._values[name])
        }
        if changed:
            self.store.assign(changed)

    # -- what Keras calls --------------------------------------------------------------------

    def _fit(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' ``fit`` with the callbacks that run here; it ends with the values of now."""
        fit = type(self.model).fit.__get__(self.model)
        bound = arguments_here(fit, args, kwargs, is_chief=self._is_chief)
        self.refresh()
        history = fit(*bound.args, **bound.kwargs)
        self.refresh()
        return history

    def _refreshing(self, method: str) -> Any:
        """Keras' ``make_…_function`` for a function that begins with the values of now."""

        def make(force: bool = False) -> Any:
            self.refresh()
            return getattr(type(self.model), method)(self.model, force)

        return make

    def _make_train_function(self, force: bool = False) -> None:
        model = self.model
        if model.train_function is not None and not force:
            return
        self._take_optimizer()
        names = {id(variable): name for name, variable in self._variables.items()}
        self._positions = [
            (i, names[id(v)])
            for i, v in enumerate(model.non_trainable_variables)
            if id(v) in names and self._is_chief
        ]
        try:
            self._trainable = [names[id(v)] for v in model.trainable_variables]
        except KeyError:
            raise ConfigurationError(
                f"{model.name!r} has a weight to train that it had not when it was distributed; "
                "build all of it before"
            ) from None
        jitted = model.jit_compile and not model.run_eagerly
        wrap = self._jax.jit if jitted else lambda function: function
        self._gradients = wrap(self._gradients_of)
        self._apply = wrap(self._optimizer.stateless_apply)
        model.train_function = model._make_function(self._step)

    # -- steps -------------------------------------------------------------------------------

    def _take_optimizer(self) -> None:
        """The optimizer that the model was compiled with last."""
        optimizer = self.model.optimizer
        settings = settings_of(optimizer)
        if self.worker_reason is None and settings != self._settings:
            raise ConfigurationError(
                f"{self.model.name!r} was compiled with another {type(optimizer).__name__} than "
                "when it was distributed, and its state is on the servers; only a rate that is a "
                "number may change. Distribute a new model for it",
                optimizer=type(optimizer).__name__,
            )
        self._optimizer, self._rate = optimizer, None
        self._rate_at = position_of(optimizer, "_learning_rate")
        self._iterations_at = position_of(optimizer, "_iterations")

    def _step(self, state: Any, data: Any) -> Any:
        """A step of training: what Keras' own compiled ``train_step`` takes and returns."""
        trainable, others, of_optimizer, metrics = state
        if any(
            array is not self._arrays[name]
            for name, array in zip(self._trainable, trainable, strict=True)
        ):
            trainable = self._follow(trainable)
        logs, gradients, others, metrics = self._gradients(
            (trainable, others, of_optimizer, metrics), data
        )
        named = dict(zip(self._trainable, map(np.asarray, gradients), strict=True))
        assigned = {name: np.asarray(others[i]) for i, name in self._positions} or None
        if self.worker_reason is None:
            self._follow_rate(of_optimizer)
            values = self.store.exchange(named, assigned=assigned)
            of_optimizer = self._counted(of_optimizer)
        else:
            updated: list[Any] = []

            def update(reduced: Mapping[str, Any]) -> Mapping[str, Any]:
                new, state = self._apply(
                    of_optimizer, [reduced[name] for name in self._trainable], trainable
                )
                updated.append(state)
                return {
                    name: np.asarray(after) - np.asarray(before)
                    for name, after, before in zip(self._trainable, new, trainable, strict=True)
                }

            values = self.store.exchange(named, update=update, assigned=assigned)
            of_optimizer = updated[-1]
        return logs, (self._take(values, self._trainable), others, of_optimizer, metrics)

    def _gradients_of(self, state: Any, data: Any) -> Any:
        """The model's ``train_step``, whose optimizer gives the gradients for the weights."""
        handed: list[Any] = []

        def hand_out(of_optimizer: Any, gradients: Any, trainable: Any) -> Any:  # noqa: ARG001
            handed.append(gradients)
            return gradients, of_optimizer

        object.__setattr__(self._optimizer, "stateless_apply", hand_out)
        try:
            logs, (gradients, others, _, metrics) = self.model.train_step(state, data)
        finally:
            object.__delattr__(self._optimizer, "stateless_apply")
        if len(handed) != 1 or gradients is not handed[0]:
            raise ConfigurationError(
                f"train_step of {type(self.model).__name__} has to call "
                "self.optimizer.stateless_apply once and return the weights that it gives; it "
                f"called it {len(handed)} times"
            )
        return logs, list(gradients), others, metrics

    def _follow(self, trainable: Sequence[Any]) -> Sequence[Any]:
        """The weights of a step that begins with others than the last one ended with."""
        given = dict(zip(self._trainable, trainable, strict=True))
        if all(np.array_equal(np.asarray(a), self._values[name]) for name, a in given.items()):
            self._arrays.update(given)  # Keras has copied them
            return trainable
        if self._is_chief:
            self._publish(given)
        return self._take(self.store.pull(), self._trainable)

    def _follow_rate(self, of_optimizer: Sequence[Any]) -> None:
        """What a callback or the program has set counts from this step on."""
        if self._rate_at is None or of_optimizer[self._rate_at] is self._rate:
            return
        self._rate = of_optimizer[self._rate_at]
        rate = float(self._rate)
        if self._rule is not None and self._rule.learning_rate != rate:
            self._rule.learning_rate = rate

    def _counted(self, of_optimizer: Sequence[Any]) -> list[Any]:
        """``optimizer.iterations`` is the job's step; of strategies without one, this worker's."""
        counted = list(of_optimizer)
        if self._iterations_at is not None:
            before = counted[self._iterations_at]
            steps = self.store.step or int(before) + 1
            counted[self._iterations_at] = np.asarray(steps, before.dtype)
        return counted


def check(model: Any, strategy: Strategy) -> None:
    """Whether a model can share its weights under a strategy.

    Raises:
        ConfigurationError: It cannot; says why and what to do.
    """
    if keras.backend.backend() != "jax":
        raise ConfigurationError(
            f"Keras runs on {keras.backend.backend()}; this bridge needs JAX: set "
            "KERAS_BACKEND=jax before Keras is imported"
        )
    if getattr(model, ATTRIBUTE, None) is not None:
        raise ConfigurationError(f"{model.name!r} is distributed already")
    if not model.built or not all(layer.built for layer in model._flatten_layers()):
        raise ConfigurationError(
            f"{model.name!r} is not built, so it has no weights to share; give it a keras.Input, "
            "or call it on one batch before it is distributed"
        )
    if not model.compiled or model.optimizer is None:
        raise ConfigurationError(
            f"{model.name!r} is not compiled; call compile with an optimizer before it is "
            "distributed"
        )
    if not model.trainable_variables:
        raise ConfigurationError(f"{model.name!r} has no weight to train")
    replicas = len(strategy.extended.replica_devices)
    if replicas > 1:
        raise ConfigurationError(
            f"{type(strategy).__name__} has {replicas} replicas in this process, which would share "
            "one model; start a process for each (`windlass local --workers`)"
        )
