"""Steps of an optax optimizer on this worker that leave everything on the device.

Where no other process has the parameters, nobody has to be told of a step: arrays and the
optimizer's state stay JAX's, and the store has them when it is asked, be it for a checkpoint.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..core.arrays.dtypes import Array
from .array_store import ArrayStore
from .jax_arrays import start_copies
from .optax_worker import WorkerOptimizer


class StepsOnDevice:
    """Makes steps of a program alone.

    Args:
        store: That has the parameters and the optimizer's state.
        optimizer: The program's.
        names: Of the parameters.
        keeps_state: Whether checkpoints have the optimizer's state.
        values: Gives the parameters of now, by name.
    """

    def __init__(
        self,
        store: ArrayStore,
        optimizer: WorkerOptimizer,
        names: list[str],
        values: Callable[[], Mapping[str, Array]],
        *,
        keeps_state: bool,
    ) -> None:
        self._store, self._optimizer, self._names = store, optimizer, names
        self._values, self._keeps_state = values, keeps_state
        self._steps = 0  # that the store has not heard of
        kept = optimizer.kept.names() if keeps_state else []
        self._own = store.own_values([*names, *kept], self._all)

    def step(
        self,
        gradients: Mapping[str, Any],
        arrays: Mapping[str, Any],
        extra: Mapping[str, Any],
        commit: Callable[[list[Any], dict[str, Array]], None],
    ) -> bool:
        """Make a step, if that can be done here.

        Args:
            gradients: By name.
            arrays: The parameters, by name.
            extra: As the optimizer takes it.
            commit: Takes the new parameters, in the order of names, and the same by name as arrays
                of the host, which share their memory on a CPU. Not called for a step with NaN.

        Returns:
            Whether it was made; False: nothing was done.

        Raises:
            NonFiniteGradientError: So many steps in a row are refused that the model has diverged.
        """
        own = self._own
        if own is None:
            return False

        def update() -> Mapping[str, Array]:
            new = self._optimizer.apply(gradients, arrays, extra)
            made = [new[name] for name in self._names]
            start_copies(made)
            # Their memory is not donated as long as an array of the host refers to it.
            on_host = dict(zip(self._names, map(np.asarray, made), strict=True))
            own.commit = partial(self._commit, commit, made, on_host)
            return on_host

        return self._store.step_by_program(update, own) is not None

    def _commit(
        self,
        commit: Callable[[list[Any], dict[str, Array]], None],
        made: list[Any],
        on_host: dict[str, Array],
    ) -> None:
        commit(made, on_host)
        self._steps += 1

    def loaded(self) -> None:
        """Note that the program has the values of the store."""
        self._steps = 0
        if self._own is not None:
            self._own.mark()

    def _all(self) -> Mapping[str, Array]:
        values = dict(self._values())
        if self._keeps_state:
            steps, self._steps = self._steps, 0
            values |= self._optimizer.kept.pushed(self._optimizer.entries(), steps)
        return values
