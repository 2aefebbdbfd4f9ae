"""Keras on JAX: a step is a compiled function of all state, which goes round through its caller.

The model's own ``train_step`` is compiled with an optimizer that hands the gradients out; they are
pushed, and Keras is given the values that come back as the weights of the next step. So a model's
own ``train_step``, losses, masks and weights of samples work as they do alone.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.arrays import Array
from ...core.errors import ConfigurationError
from ..extras import require
from ..jax_arrays import on_device
from .optimizer import position_of

if TYPE_CHECKING:
    from .weights import SharedWeights

jax: Any = require("jax", "keras")


class Steps:
    """Steps of Keras on JAX. What it was given last is recognised by the identity of arrays."""

    def __init__(self, weights: "SharedWeights") -> None:
        self._weights = weights
        self._model = weights.model
        self._arrays: dict[str, Any] = {}  # of which Keras was given these
        self._rate: Any = None  # the array that the rate was last read from
        self._rate_at: int | None = None
        self._iterations_at: int | None = None
        self._trainable: list[str] = []  # in the order of Keras' state
        self._averages: list[tuple[int, str]] = []  # that this worker pushes
        self._gradients: Any = None
        self._apply: Any = None

    # -- values ------------------------------------------------------------------------------

    def array(self, variable: Any) -> Array:
        """Of the same memory on the CPU."""
        return np.asarray(variable.value)

    def load(self, names: Mapping[str, Any], values: Mapping[str, Array]) -> None:
        """Arrays of JAX, of the same memory where they are large."""
        for variable, array in zip(names.values(), self._take(values, list(names)), strict=True):
            variable.assign(array)

    def _take(self, values: Mapping[str, Array], names: Sequence[str]) -> list[Any]:
        """Note what came; returns arrays of JAX for these names."""
        arrays = on_device([values[name] for name in names])
        self._arrays.update(zip(names, arrays, strict=True))
        return arrays

    def changed(self) -> Mapping[str, Array]:
        """Variables of another array, and of other values."""
        return self._changed({n: v.value for n, v in self._weights.variables.items()})

    def _changed(self, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
        values = self._weights.values
        return {
            name: np.asarray(array)
            for name, array in arrays.items()
            if array is not self._arrays[name]
            and not np.array_equal(np.asarray(array), values[name])
        }

    def sync(self) -> None:
        """Within an epoch Keras keeps all state outside of its variables."""
        self._model.jax_state_sync()

    # -- steps -------------------------------------------------------------------------------

    def make_train_function(self) -> None:
        """Compile the model's ``train_step``."""
        model, weights = self._model, self._weights
        optimizer = weights.optimizer
        self._rate = None
        self._rate_at = position_of(optimizer, "_learning_rate")
        self._iterations_at = position_of(optimizer, "_iterations")
        self._trainable = weights.trained_names()
        pushed = set(weights.pushed_averages())
        names = ((i, weights.name_of(v)) for i, v in enumerate(model.non_trainable_variables))
        self._averages = [(i, name) for i, name in names if name in pushed]
        jitted = model.jit_compile and not model.run_eagerly
        wrap = jax.jit if jitted else lambda function: function
        self._gradients = wrap(self._gradients_of)
        self._apply = wrap(optimizer.stateless_apply)
        model.train_function = model._make_function(self._step)

    def _step(self, state: Any, data: Any) -> Any:
        """A step of training: what Keras' own compiled ``train_step`` takes and returns."""
        weights = self._weights
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
        averages = {name: np.asarray(others[i]) for i, name in self._averages}
        if weights.worker_reason is None:
            self._follow_rate(of_optimizer)
            values = weights.exchange(named, averages=averages)
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

            values = weights.exchange(named, update=update, averages=averages)
            of_optimizer = updated[-1]
        return logs, (self._take(values, self._trainable), others, of_optimizer, metrics)

    def _gradients_of(self, state: Any, data: Any) -> Any:
        """The model's ``train_step``, whose optimizer gives the gradients for the weights."""
        handed: list[Any] = []
        optimizer = self._weights.optimizer

        def hand_out(of_optimizer: Any, gradients: Any, trainable: Any) -> Any:  # noqa: ARG001
            handed.append(gradients)
            return gradients, of_optimizer

        object.__setattr__(optimizer, "stateless_apply", hand_out)
        try:
            logs, (gradients, others, _, metrics) = self._model.train_step(state, data)
        finally:
            object.__delattr__(optimizer, "stateless_apply")
        if len(handed) != 1 or gradients is not handed[0]:
            raise ConfigurationError(
                f"train_step of {type(self._model).__name__} has to call "
                "self.optimizer.stateless_apply once and return the weights that it gives; it "
                f"called it {len(handed)} times"
            )
        return logs, list(gradients), others, metrics

    def _follow(self, trainable: Sequence[Any]) -> Sequence[Any]:
        """The weights of a step that begins with others than the last one ended with."""
        given = dict(zip(self._trainable, trainable, strict=True))
        changed = self._changed(given)
        if not changed:
            self._arrays.update(given)  # Keras has copied them
            return trainable
        if self._weights.is_chief:
            self._weights.store.assign(changed)
        values = self._weights.values = self._weights.store.pull()
        return self._take(values, self._trainable)

    def _follow_rate(self, of_optimizer: Sequence[Any]) -> None:
        if self._rate_at is None or of_optimizer[self._rate_at] is self._rate:
            return
        self._rate = of_optimizer[self._rate_at]
        self._weights.set_rate(float(self._rate))

    def _counted(self, of_optimizer: Sequence[Any]) -> list[Any]:
        """``optimizer.iterations`` is the job's step; of strategies without one, this worker's."""
        counted = list(of_optimizer)
        if self._iterations_at is not None:
            before = counted[self._iterations_at]
            steps = self._weights.store.step or int(before) + 1
            counted[self._iterations_at] = np.asarray(steps, before.dtype)
        return counted
