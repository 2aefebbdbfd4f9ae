"""The state of an optimizer on the worker, as variables: so the job's checkpoints have it.

Such variables are pushed with the chief's steps and never come back with values: they cost bytes of
the chief's push, and a round trip when a program starts. A state that has other arrays (another
optimizer, another model) has another name, so it begins anew and is no mismatch.
"""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ..core.arrays.any_framework import to_host
from ..core.arrays.dtypes import Array
from ..core.checkpoint.export import OPTIMIZER_STATE
from ..distribute.strategies.strategy import Strategy
from ..distribute.variables.variable import Variable

_HEAD = 2  # numbers before the rest of the vector
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class KeptState:
    """Arrays and numbers by name, as variables under a strategy.

    Numbers (arrays without dimensions) are one vector of float64, so that a step counter of each
    parameter is no variable. It has, too, how often the optimizer was applied, by which program
    (a random number), and which entries it has a state for.

    Args:
        entries: What the state may have, by name: first values, of which shapes and dtypes count.
        kind: Kind of the optimizer, a part of the names.
        prefix: Prefix of all names; empty or without a slash at its end.

    Attributes:
        updates: How often the optimizer was applied; a job that resumes goes on counting.
    """

    def __init__(self, entries: Mapping[str, Any], *, kind: str, prefix: str) -> None:
        first = {name: np.asarray(entry) for name, entry in sorted(entries.items())}
        told = str([(name, array.shape, array.dtype.str) for name, array in first.items()])
        digest = hashlib.sha256(told.encode()).hexdigest()[:8]
        self._dtypes = {name: array.dtype for name, array in first.items()}
        self._numbers = [name for name, array in first.items() if not array.ndim]
        self._arrays = {name: array for name, array in first.items() if array.ndim}
        self._folder = "/".join(filter(None, (prefix, OPTIMIZER_STATE, f"{kind}-{digest}")))
        self._vector = f"{self._folder}/numbers"
        self.updates = 0
        self._program = float(secrets.randbits(52))
        self._known = (0, 0.0)

    def variables(self, strategy: Strategy) -> dict[str, Variable]:
        """Make them, for the tables of a store; by the names they have."""
        size = _HEAD + len(self._dtypes) + len(self._numbers)
        values: dict[str, Array] = {self._vector: np.zeros(size, np.float64)}
        values |= {f"{self._folder}/{name}": array for name, array in self._arrays.items()}
        with strategy.scope():
            return {
                name: Variable(value, name=name, trainable=False) for name, value in values.items()
            }

    def names(self) -> list[str]:
        """Of the variables."""
        return [self._vector, *(f"{self._folder}/{name}" for name in self._arrays)]

    def pushed(self, entries: Mapping[str, Any], steps: int = 1) -> dict[str, Array]:
        """What to overwrite after a step, by the names of variables; counts the step.

        Args:
            entries: The state as it is now; of an entry that is not there nothing is overwritten.
            steps: How many were made since this was called last.
        """
        self.updates += steps
        has = [name in entries for name in self._dtypes]
        numbers = [float(np.asarray(entries.get(name, 0))) for name in self._numbers]
        arrays = {
            f"{self._folder}/{name}": np.asarray(entries[name])
            for name in self._arrays
            if name in entries
        }
        self._known = (self.updates, self._program)
        return {self._vector: np.array([*self._known, *has, *numbers], np.float64), **arrays}

    def is_other(self, read: Callable[[list[str]], Mapping[str, Array]]) -> bool:
        """Whether there is another state than was pushed or found here last: one was restored.

        Args:
            read: Gives values of variables by name.
        """
        updates, program, *_ = to_host(read([self._vector])[self._vector])
        return (int(updates), float(program)) != self._known

    def found(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The entries that were pushed, by their own names; none if nothing was.

        Args:
            values: Values of the variables, by name.
        """
        vector = to_host(values[self._vector])
        self.updates = int(vector[0])
        self._known = (self.updates, float(vector[1]))
        if not self.updates:
            return {}
        count = len(self._dtypes)
        has = dict(zip(self._dtypes, vector[_HEAD : _HEAD + count], strict=True))
        numbers = dict(zip(self._numbers, vector[_HEAD + count :], strict=True))
        return {
            name: np.asarray(numbers[name], dtype)
            if name in numbers
            else np.array(to_host(values[f"{self._folder}/{name}"]), dtype)
            for name, dtype in self._dtypes.items()
            if has[name]
        }


def can_keep(entry: Any) -> bool:
    """Whether an entry is numbers that a variable may have."""
    dtype = np.asarray(entry).dtype
    return dtype.kind in "biuf" or dtype == _BFLOAT16
