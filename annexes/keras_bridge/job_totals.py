"""Metrics of the whole job: the states of Keras' metrics, added up over the workers.

A metric of Keras keeps sums (a total and a count, counts per threshold, a confusion matrix), and
says of each variable how several replicas make one value of it (``aggregation``, sums unless it
says otherwise). So the result over all examples of all workers is that of the added states, to the
last decimal; means of results would not be.

Workers in sync add up when an epoch or an evaluation ends, in one all-reduce, and all have the same
logs. In the same call what layers keep for themselves is averaged, unless all workers share it as
they do the averages of batch norm.

Workers of parameter servers end their epochs at different times and wait for nobody: each adds its
epoch to a sum on the servers when it ends, and the chief takes what is there, with its own, for the
logs of its epoch. So nothing counts twice; what others end after the chief's last epoch is in no
log. Others than the chief see their own. A mean is one of epochs, and the first replica the chief.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...distribute.base.reductions import VariableAggregation
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from ...training.in_sync import workers_in_sync
from .frameworks import keras
from .in_sync import sum_over_workers
from .replica_parts import combination

MOST_NUMBERS = 8192
"""The numbers of a sum on the servers, 64 KiB on a ps. The last is the count of its epochs, the one
before it the sum of their :func:`_layout`.
"""


class InSync:
    """Totals of workers in sync, who all call this at the same places.

    Args:
        strategy: Strategy of the workers.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._count = workers_in_sync(strategy)
        self._is_first = strategy.extended.first_replica == 0

    def combine(
        self, metrics: Sequence[Any], averages: Sequence[Any], logs: Mapping[str, float]
    ) -> dict[str, float]:
        """Give metrics' variables their totals, and averages their mean.

        Returns:
            The means of logs, of which every worker has the same names.
        """
        variables = [*metrics, *averages]
        if not variables and not logs:
            return {}
        kinds = np.append(_kinds(metrics, averages), ["mean"] * len(logs))
        numbers = np.append(packed(variables), list(logs.values()))
        numbers = _given(numbers, kinds, is_first=self._is_first)
        total = _combined(sum_over_workers(self._strategy, numbers), kinds, self._count)
        unpack(total, variables)
        return dict(zip(logs, total[len(total) - len(logs) :].tolist(), strict=True))


class OnServers:
    """Totals of workers that are not in sync.

    Args:
        strategy: Strategy of the workers.
        name: Name of the variable on the servers.
        is_chief: Whether the totals are for this worker's logs.
    """

    def __init__(self, strategy: Strategy, name: str, *, is_chief: bool) -> None:
        self._is_chief = is_chief
        with strategy.scope():
            self._sum: Variable = Variable(
                np.zeros((1, MOST_NUMBERS), np.float64),
                name=name,
                trainable=False,
                aggregation=VariableAggregation.SUM,
            )
        if is_chief:  # of a job that resumes: what was left when it was saved
            self._sum.assign(np.zeros((1, MOST_NUMBERS)))

    def combine(self, metrics: Sequence[Any]) -> None:
        """Add this worker's epoch; on the chief give metrics' variables what there is.

        Where another worker has compiled the model with other metrics by then, or not yet with
        these, their numbers cannot be told apart, and the chief keeps its own.
        """
        kinds = _kinds(metrics)
        count, layout = len(kinds), _layout(metrics)
        if not 0 < count < MOST_NUMBERS - 1:
            return
        whole = np.zeros((1, MOST_NUMBERS))
        whole[0, :count] = _given(packed(metrics), kinds, is_first=self._is_chief)
        whole[0, -2:] = layout, 1
        self._sum.assign_add(whole)
        if self._is_chief:
            total = np.array(self._sum.read_value())
            self._sum.assign_sub(total)
            if total[0, -2] == layout * total[0, -1]:
                unpack(_combined(total[0, :count], kinds, total[0, -1]), metrics)


def _layout(metrics: Sequence[Any]) -> int:
    """Compute a number of which metrics there are, whatever Keras appends to names that it gives
    twice.
    """
    names = [re.sub(r"_\d+(?=/)", "", variable.path) for variable in metrics]
    shapes = [tuple(variable.shape) for variable in metrics]
    return zlib.crc32(repr((names, shapes)).encode())


def _kinds(metrics: Sequence[Any], averages: Sequence[Any] = ()) -> Array:
    """Decide how each number of :func:`packed` becomes the job's: a :data:`Combination`."""
    kinds: list[str] = [
        combination(
            getattr(variable, "aggregation", "sum"),
            is_float=keras.backend.is_float_dtype(variable.dtype),
        )
        for variable in metrics
    ]
    kinds += ["mean"] * len(averages)
    return np.repeat(kinds, list(map(_size, [*metrics, *averages])))


def _given(mine: Array, kinds: Array, *, is_first: bool) -> Array:
    """Compute what a worker adds to a sum."""
    return mine if is_first else np.where(kinds == "first", 0.0, mine)


def _combined(total: Array, kinds: Array, count: float) -> Array:
    """Compute the job's value of a sum over ``count`` workers."""
    return total / np.where(kinds == "mean", count, 1)


def packed(variables: Sequence[Any]) -> Array:
    """Pack variables of Keras into one array of float64, in which counts above 2**24 stay exact."""
    parts = [np.asarray(variable.numpy(), np.float64).reshape(-1) for variable in variables]
    return np.concatenate(parts) if parts else np.zeros(0)


def unpack(numbers: Array, variables: Sequence[Any]) -> None:
    """Give variables of Keras the numbers that :func:`packed` made of some."""
    start = 0
    for variable in variables:
        part = numbers[start : start + _size(variable)]
        start += len(part)
        variable.assign(part.reshape(tuple(variable.shape)).astype(variable.dtype))


def _size(variable: Any) -> int:
    return int(np.prod(tuple(variable.shape), dtype=np.int64))
