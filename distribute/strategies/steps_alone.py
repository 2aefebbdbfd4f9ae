"""Steps of a program that is its whole cluster: no other process has its variables.

A strategy gives a bridge these, or None in a cluster. Update rules then work on the program's own
arrays, or an optimizer of the program does, and the servers are asked for what they have to know:
values when they are read, and how many steps were made. No session takes part (ADR 0042).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.arrays.dtypes import Array
from ...core.errors import NonFiniteGradientError
from ..base.contexts import is_running, require_own
from ..base.interface import StrategyInterface, Updates
from ..base.moved_average import MovedAverage
from ..runtime import ClusterRuntime
from ..variables.variable import Variable
from .finite_updates import DELTAS, FiniteUpdates
from .server_step import ServerStep

if TYPE_CHECKING:  # they load the server, which a worker of a cluster has no use for
    from ..own_arrays import OwnArrays, OwnValues

Pairs = Sequence[tuple[Variable, Array]]


class StepsAlone:
    """Each of its steps is one of its own, outside of ``run``.

    Args:
        strategy: Strategy whose variables they change.
        runtime: Runtime of the task; its ``in_process`` has the only parameter server.
        step: Counts steps.
        lock: The strategy's; held during a step.
        define: Makes variables known that were just created.
        bind: Binds the rule of an optimizer to variables.
    """

    def __init__(
        self,
        strategy: StrategyInterface,
        runtime: ClusterRuntime,
        step: ServerStep,
        lock: threading.RLock,
        *,
        define: Callable[[], None],
        bind: Callable[[Any, Sequence[Variable]], None],
    ) -> None:
        self._strategy, self._runtime, self._step = strategy, runtime, step
        self._lock, self._define, self._bind = lock, define, bind
        self._finite = FiniteUpdates(runtime, DELTAS)

    # -- the program's memory ----------------------------------------------------------------

    def arrays(
        self, trained: Pairs, others: Pairs = (), *, adopt: bool = True
    ) -> "OwnArrays | None":
        """Let steps update the program's arrays in place.

        Args:
            trained: Variables that steps change, each with the array that has its value: on the
                host, writable, of the variable's shape and dtype.
            others: Variables that the program alone changes, in the form of ``trained``.
            adopt: Whether the arrays are for :meth:`apply`; False: for :meth:`by_program`.

        Returns:
            The arrays; None: a variable is cut into parts.
        """
        from ..own_arrays import OwnArrays

        with self._lock:
            self._define()
            here = self._runtime.in_process
            if here is None or here.places([v for v, _ in (*trained, *others)]) is None:
                return None
            return OwnArrays(here, trained, others, adopt=adopt)

    def values(
        self, variables: Mapping[str, Variable], values: Callable[[], Mapping[str, Array]]
    ) -> "OwnValues | None":
        """Let the program keep values of variables.

        Args:
            variables: Variables by name.
            values: Gives what they are now, by name, whenever they are read, be it for a
                checkpoint.

        Returns:
            The values; None: a variable is cut into parts.
        """
        from ..own_arrays import OwnValues

        with self._lock:
            self._define()
            here = self._runtime.in_process
            if here is None or here.places(list(variables.values())) is None:
                return None
            return OwnValues(here, variables, values)

    # -- steps -------------------------------------------------------------------------------

    def apply(self, updates: Updates, own: "OwnArrays") -> bool:
        """Apply gradients to the program's arrays.

        Args:
            updates: Gradients of a step.
            own: Result of :meth:`arrays`.

        Returns:
            Whether the arrays have been updated; False: nothing was done, the step is one for the
            session.
        """
        if not self._may_step():
            return False
        with self._lock:
            if not own.are_current:
                return False
            own.keep()
            if not self._has_applied(updates):
                return False
            own.load()
            return True

    def apply_and_read(
        self,
        updates: Updates,
        reads: Sequence[Variable],
        averages: Sequence[tuple[Variable, MovedAverage]],
    ) -> list[Array] | None:
        """Apply gradients, and read what they made. The caller holds the lock.

        Returns:
            Copies of the values of ``reads``; None: nothing was done, the step is one for the
            session.
        """
        here = self._runtime.in_process
        values = None if here is None else here.reads(reads)
        if here is None or values is None:
            return None
        here.take_own()  # what a model has changed whose optimizer the program runs
        return values.now() if self._has_applied(updates, averages) else None

    def by_program(
        self, update: Callable[[], Mapping[str, Array]], own: "OwnArrays | OwnValues"
    ) -> bool | None:
        """Let an optimizer of the program make a step.

        Args:
            update: Makes it, and returns the new values by the names of their variables; with NaN
                or infinity in them the step is refused, and arrays are what they were.
            own: Result of :meth:`values`, or of :meth:`arrays` without ``adopt``.

        Returns:
            Whether the step counts; False: it was refused; None: ``update`` was not called, the
            step is one for the session.

        Raises:
            NonFiniteGradientError: So many steps in a row are refused that the model has diverged.
        """
        if not self._may_step():
            return None
        with self._lock:
            here = self._runtime.in_process
            if here is None or not (own.are_current and self._step.is_free):
                return None
            new = update()
            try:
                refused = self._finite.refuses(new, self._runtime.session.global_step)
            except NonFiniteGradientError:
                own.load()
                raise
            if refused:
                own.load()
                return False
            own.keep()
            increment = self._step.increment_alone()
            self._step.made_alone(here.count(increment), increment)
            return True

    def _may_step(self) -> bool:
        """Return whether this is outside of ``run``."""
        if is_running(self._strategy):
            return False
        require_own(self._strategy, "this store")
        self._runtime.job.check()
        return True

    def _has_applied(
        self, updates: Updates, averages: Sequence[tuple[Variable, MovedAverage]] = ()
    ) -> bool:
        here, step = self._runtime.in_process, self._step
        if here is None or not step.is_free:
            return False
        for optimizer, pairs in updates:
            self._bind(optimizer, [variable for _, variable in pairs])
        increment = step.increment_alone()
        global_step = here.apply(updates, averages, step_increment=increment)
        if global_step is None:
            return False
        step.made_alone(global_step, increment)
        return True
