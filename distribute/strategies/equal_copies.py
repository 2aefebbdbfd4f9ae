"""Whether workers in sync hold the same values: one number for each of some variables, compared.

Copies stay equal as long as all workers add the same to them. An optimizer that draws random
numbers on each worker by itself, or noise that a program adds to weights between steps, trains
another model on each of them, and nothing else would tell.

A number is made of the norm of some of a variable's values and of their direction, in units of what
rounding makes of it where workers have other processors. A few variables are compared at a time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array, DType, is_float, size_of
from ...core.errors import IncompatibleError
from ...core.task import TaskId
from ..base.reductions import VariableSynchronization
from ..variables.variable import Variable

COUNT = 8
"""Number of variables that are compared at a time."""

_SAMPLES = 1024  # of a variable's values
_LEAST_UNIT = 1e-3  # in float32 rounding makes 1e-5 in a long run
_UNIT_EPS = 16  # of a narrower dtype


def chosen(variables: Mapping[str, Variable], step: int) -> list[str]:
    """Choose the names of the variables to compare after a step, the same on all workers.

    Args:
        variables: All variables by name. Scalars are left out, as programs keep numbers of their
            own in them, and so is what no optimizer trains.
        step: The job's step.
    """
    names = sorted(
        name
        for name, variable in variables.items()
        if variable.trainable
        and variable.synchronization is not VariableSynchronization.ON_READ
        and is_float(variable.dtype)
        and size_of(variable.shape) > 1
    )
    first = step * COUNT % len(names) if names else 0
    return [*names, *names][first : first + min(COUNT, len(names))]


def numbers_of(variables: Sequence[Variable]) -> Array:
    """Compute a float64 for each variable, padded with zeros to :data:`COUNT`."""
    found = np.zeros(COUNT)
    for place, variable in enumerate(variables):
        values = variable.read_value().reshape(-1)
        sample = to_host(values[:: max(1, values.size // _SAMPLES)]).astype(np.float64)
        norm = np.sqrt(sample @ sample)
        unit = max(_LEAST_UNIT, _UNIT_EPS * _eps(values.dtype))
        direction = np.cos(np.arange(sample.size))  # a sum hardly changes where values are alike
        found[place] = (sample @ direction / norm + np.log(norm)) / unit if norm > 0 else 0.0
    return found


def _eps(dtype: DType) -> float:
    """Compute how far rounding to a dtype moves a number. NumPy knows none of ``bfloat16``."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).eps)


def require_equal(
    names: Sequence[str], numbers: Array, members: Sequence[TaskId], rank: int, step: int
) -> None:
    """Refuse workers whose copies of a variable are not the same.

    Args:
        names: The variables that were compared.
        numbers: Numbers of all workers, shape (workers, COUNT).
        members: The workers, by rank.
        rank: Number of this one.
        step: The step after which they were compared.

    Raises:
        IncompatibleError: Some differ by more than rounding.
    """
    spread = numbers.max(axis=0) - numbers.min(axis=0)
    for name, distance in zip(names, spread, strict=False):
        if distance > 1:
            raise IncompatibleError(
                f"after step {step} the copies of {name!r} differ between the workers in sync, "
                f"{distance:.2g} times as much as rounding explains, so each trains another model: "
                "an optimizer, or what changes weights between steps, draws random numbers on each "
                "worker by itself, or makes other changes. Draw the same numbers on all workers, "
                "from a generator of their own with one seed (torch.Generator().manual_seed(0), "
                "jax.random.key(0), np.random.default_rng(0)), and make the same changes on all",
                task=members[rank],
            )
