"""Steps of an optimizer on this worker that leave everything on the device.

Where no other process has the parameters, nothing has to be sent after a step: arrays and the
optimizer's state stay JAX's, and the store has them when it is asked, be it for a checkpoint.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ...core.arrays.dtypes import Array
from ...training.array_store import ArrayStore
from .arrays import to_hosts


class StepsOnDevice:
    """Makes steps of a program alone.

    Args:
        store: Store of the parameters and the optimizer's state.
        names: Names of these in the store.
        values: Returns their current values: arrays of the host by name, of some or all of them.
    """

    def __init__(
        self,
        store: ArrayStore,
        names: Iterable[str],
        values: Callable[[], Mapping[str, Array]],
    ) -> None:
        alone = self._alone = store.alone
        variables = {name: store.variables[name] for name in names}
        self._own = None if alone is None else alone.values(variables, values)

    def step(
        self,
        update: Callable[[], Mapping[str, Any]],
        commit: Callable[[dict[str, Array]], None],
    ) -> bool | None:
        """Make a step, if that can be done here.

        Args:
            update: Makes it; returns the new parameters by name, as arrays of JAX.
            commit: Takes them as arrays of the host, which share their memory on a CPU. Not called
                for a step with NaN.

        Returns:
            Whether the step counts; False: it was refused; None: nothing was done.

        Raises:
            NonFiniteGradientError: So many steps in a row are refused that the model has diverged.
        """
        alone, own = self._alone, self._own
        if alone is None or own is None:
            return None

        def made() -> Mapping[str, Array]:
            new = update()
            # Their memory is not donated as long as an array of the host refers to it.
            on_host = to_hosts(new)
            own.commit = partial(commit, on_host)
            return on_host

        return alone.by_program(made, own)

    def loaded(self) -> None:
        """Note that the program has the values of the store."""
        if self._own is not None:
            self._own.mark()
