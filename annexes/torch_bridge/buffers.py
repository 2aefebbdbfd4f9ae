"""Buffers of a PyTorch module, and what a step made of them.

Those of batch norm are moving averages of the batches of all workers: each step pushes what it adds
to them with its gradients, and takes the averages of now (``distribute/base/moved_average.py``).
What other layers keep is not known to be an average (a queue, vectors of a spectral norm), so it is
never mixed: each worker has its own while it trains, and what it changes overwrites the job's, for
checkpoints.
"""

import math
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...distribute.base.moved_average import MovedAverage
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from .host_copies import HostCopies
from .names import named_buffers
from .tensors import Targets, to_array
from .updates import JobUpdates

_AVERAGES = ("running_", "moving_")
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer with moving averages.

    Attributes:
        momentum: The weight of a batch; None: that of all batches is the same.
        averages: Names of its averages.
        counter: Name of the number of its batches; None: it has none.
    """

    momentum: float | None
    averages: tuple[str, ...]
    counter: str | None


@dataclass(slots=True)
class _Shared:
    """A buffer under a strategy, whatever optimizers were given its module.

    Attributes:
        variable: The strategy's.
        value: Value that was loaded last.
    """

    variable: Variable
    value: Array


_strategies: weakref.WeakKeyDictionary[Strategy, dict[int, _Shared]] = weakref.WeakKeyDictionary()


class Buffers:
    """The buffers of a module that a job keeps.

    Args:
        module: Module whose buffers they are; None: there are none.
        prefix: Comes first in their names.
        strategy: Strategy of the job. Of workers in sync only averages are kept.
        updates: Counter of an optimizer's updates; None: it has none.

    Attributes:
        tensors: Tensors by name.
        averages: Tensors that all workers share, with the counters of their batches.
    """

    def __init__(
        self, module: Any, prefix: str, strategy: Strategy, updates: JobUpdates | None = None
    ) -> None:
        in_sync = strategy.extended.num_replicas_in_sync > 1
        alone = strategy.extended.alone is not None  # where stores work on the program's memory
        self._every = {} if alone else _strategies.setdefault(strategy, {})
        every = {} if module is None else named_buffers(module, prefix)
        names = {id(buffer): name for name, buffer in every.items()}
        self._layers = [] if module is None else list(_layers(module, names))
        if updates is not None:
            every[updates.name] = updates.total
            self._layers.append(_Layer(0.0, (), updates.name))
        shared = {name for layer in self._layers for name in (*layer.averages, layer.counter)}
        self.averages = {name: tensor for name, tensor in every.items() if name in shared}
        others = {} if in_sync else {n: t for n, t in every.items() if n not in shared}
        self.tensors = self.averages | others
        self._others, self._in_sync, self._strategy = others, in_sync, strategy
        self._marks = self._marks_now()
        self._views, self._copies = Targets(self.averages), HostCopies()

    def leaves(self) -> dict[str, Any]:
        """Collect what a store is made of: variables of another optimizer's store, or first
        values.
        """
        return {
            name: self._every[id(tensor)].variable
            if id(tensor) in self._every
            else to_array(tensor)
            for name, tensor in self.tensors.items()
        }

    def share(self, variables: Mapping[str, Variable]) -> None:
        """Know the variables of the buffers, by name, as long as the program has the buffers."""
        for name, tensor in self.tensors.items():
            key = id(tensor)
            if key not in self._every:
                self._every[key] = _Shared(variables[name], to_array(tensor))
                weakref.finalize(tensor, self._every.pop, key, None).atexit = False
        self._strategy.extended.last_write_counts([variables[name] for name in self._others])

    def loaded(self, values: Mapping[str, Array]) -> None:
        """Note values, by name, that the buffers have by now."""
        for name, tensor in self.averages.items():
            self._every[id(tensor)].value = values[name]

    def moved(self) -> dict[str, MovedAverage]:
        """Collect what has become of averages since they were loaded, by name; of layers that
        computed.
        """
        if not self._layers:
            return {}
        before = {name: self._every[id(tensor)].value for name, tensor in self.averages.items()}
        after: Any = self._views.arrays()
        if after is None:
            after = self._copies.gradients(self.averages)
        averages: dict[str, MovedAverage] = {}
        for layer in self._layers:
            seen, batches = 0, 1
            if layer.counter is not None:
                counted = MovedAverage(before[layer.counter], after[layer.counter], 0.0)
                seen, now = int(counted.before), int(counted.after)
                batches = now - seen
                computed = batches or _differ(layer.averages, before, after)  # some do not count
                if not (computed or self._in_sync):  # in sync all push the same
                    continue
                averages[layer.counter] = counted
            decay = decay_of(layer.momentum, batches, seen)
            for name in layer.averages:
                averages[name] = MovedAverage(before[name], after[name], decay)
        return averages

    def changed(self) -> dict[str, Array]:
        """Find the values of other buffers that are not what they were when this was called
        last.
        """
        values: dict[str, Array] = {}
        for name, mark in self._marks_now().items():
            if mark != self._marks[name]:
                self._marks[name] = mark
                values[name] = to_array(self._others[name])
        return values

    def mark(self) -> None:
        """Note that what the buffers have now is the job's."""
        self._marks = self._marks_now()

    def _marks_now(self) -> dict[str, object]:
        return {name: _mark(name, tensor) for name, tensor in self._others.items()}


def _differ(
    names: tuple[str, ...], before: Mapping[str, Array], after: Mapping[str, Array]
) -> bool:
    return any(not np.array_equal(before[name], after[name]) for name in names)


def decay_of(momentum: float | None, batches: int, seen: int) -> float:
    """Compute the weight of the last batches in a moving average, together.

    Args:
        momentum: The weight of a batch, as PyTorch has it; None: all batches have the same.
        batches: Number of these batches. At least 1; what makes no sense counts as 1.
        seen: Number of batches before them.

    Returns:
        Weight in [0, 1]. Without a momentum the next power of two, as it is sent once for each
        value; a
        larger weight does no harm.
    """
    batches = max(1, batches)
    if momentum is not None:
        return float(1 - (1 - momentum) ** batches)
    share = batches / (max(0, seen) + batches)
    return float(2.0 ** math.ceil(math.log2(share)))


def _layers(module: Any, names: Mapping[int, str]) -> Iterator[_Layer]:
    """Yield layers with averages whose momentum is known, as those of ``torch.nn`` and most
    others.
    """
    for layer in module.modules():
        momentum = getattr(layer, "momentum", "")
        if momentum is not None and not (isinstance(momentum, int | float) and 0 <= momentum <= 1):
            continue
        own = {
            key: (names[id(buffer)], buffer)
            for key, buffer in layer._buffers.items()
            if id(buffer) in names
        }
        averages = tuple(
            name
            for key, (name, buffer) in own.items()
            if key.startswith(_AVERAGES) and buffer.is_floating_point()
        )
        counter, _ = own.get(_COUNTER, (None, None))
        if averages and not (momentum is None and counter is None):
            yield _Layer(momentum, averages, counter)


def _mark(name: str, tensor: Any) -> object:
    """Return a mark that is another one after what a step has done to a tensor."""
    if name.rpartition(".")[2].startswith(_AVERAGES):
        return to_array(tensor).tobytes()  # torch.nn.functional.batch_norm counts no version
    return tensor.data_ptr(), tensor._version
