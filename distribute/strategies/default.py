"""The default strategy: what a program has that uses none."""

from typing import Any, Self, cast

from ..base import contexts
from ..base.contexts import top_frame
from ..base.devices import HOST, current_device, list_logical_devices
from ..variables.local import LocalVariable
from ..variables.spec import VariableSpec
from ..variables.variable import Variable
from .extended import StrategyExtended
from .strategy import Scope, Strategy


class _DefaultScope(Scope):
    """The default strategy's scope does nothing, but must not stand inside another's."""

    def __enter__(self) -> Strategy:
        current = top_frame()
        if current is not None and current.strategy is not self._strategy:
            raise RuntimeError("Must not nest tf.distribute.Strategy scopes.")
        self._frames.append(None)
        return self._strategy


class _DefaultExtended(StrategyExtended):
    """The algorithms of the default strategy: no devices of its own."""

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Refused: the default strategy has no devices of its own.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("worker_devices() method unsupported by default strategy.")

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Refused: the default strategy has no devices of its own.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("parameter_devices() method unsupported by default strategy.")

    def create_variable(self, spec: VariableSpec) -> Variable:
        """Create a variable on the device of the innermost ``rw.device``; the CPU if it is not
        here.
        """
        device = current_device()
        here = device if device in list_logical_devices() else HOST
        return LocalVariable(spec, self._strategy, here, spec.name)

    def unique_name(self, wished: str) -> str:
        """Return the name itself: programs without a strategy may use one twice."""
        return wished

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Return the value.

        Raises:
            NotImplementedError: With destinations.
        """
        if destinations is not None:
            raise NotImplementedError("the default strategy has no devices to broadcast to")
        return tensor


class DefaultStrategy(Strategy):
    """The default strategy: one replica, no distribution, a scope without effect."""

    _is_chosen = False

    def __init__(self) -> None:
        super().__init__(_DefaultExtended(self, [HOST]))

    def scope(self) -> Scope:
        """Make a scope that changes nothing."""
        return _DefaultScope(self)

    def __deepcopy__(self, memo: Any) -> Self:
        return self


_default = DefaultStrategy()


def the_default_strategy() -> Strategy:
    """Return the one default strategy of the process."""
    return _default


def get_strategy() -> Strategy:
    """Return the current strategy; outside any scope the default strategy."""
    # What is current was entered by a scope, and is one of ours.
    return cast(Strategy, contexts.get_strategy())
