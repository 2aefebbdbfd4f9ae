"""Variables cut along axis 0: made of variables by hand, and by a partitioner over three ps of this
process.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import ropewalk as rw
from ropewalk.distribute import ParameterServerStrategy, ShardedVariable, partitioners, placement
from ropewalk.distribute.runtime import local_runtime
from ropewalk.distribute.strategies.parameter_server import ParameterServerExtended

Array = np.ndarray[Any, np.dtype[Any]]
WHOLE = np.arange(20, dtype=np.float32).reshape(10, 2)
PS = 3


def of_ps(strategy: ParameterServerStrategy) -> ParameterServerExtended:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended


def through_a_session(**more: Any) -> ParameterServerStrategy:
    """A strategy whose steps are messages, as those to other processes are."""
    alone = local_runtime(of_ps(ParameterServerStrategy()).runtime.task)
    return ParameterServerStrategy(runtime=replace(alone, in_process=None), **more)


def strategy_of(
    num_ps: int = PS,
    parts: int | None = None,
    where: placement.Placement = placement.round_robin,
) -> ParameterServerStrategy:
    """A worker of so many ps, all in this process."""
    task = of_ps(ParameterServerStrategy()).runtime.task
    return ParameterServerStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(parts) if parts else None,
        placement=where,
        runtime=local_runtime(task, num_ps=num_ps),
    )


def on_ps(value: Array = WHOLE, parts: int = PS, **kwargs: Any) -> ShardedVariable:
    strategy = strategy_of(parts=parts)
    with strategy.scope():
        v = rw.Variable(value, name="v", **kwargs)
    assert isinstance(v, ShardedVariable)
    return v


def by_hand(value: Array = WHOLE, parts: int = PS) -> ShardedVariable:
    pieces = np.array_split(value, parts)
    return ShardedVariable(
        [rw.Variable(piece, name=f"v/part_{i}") for i, piece in enumerate(pieces)], name="v"
    )


KINDS: dict[str, Callable[..., ShardedVariable]] = {"by-hand": by_hand, "ps": on_ps}
