"""The state of an optimizer on the worker, as variables: so the job's checkpoints have it.

Such variables are pushed with the steps of the worker whose copy counts, the chief, and never come
back with values: they cost bytes of the chief's push, and a round trip when a program starts. A
state that has other arrays (another optimizer, another model) has another name, so it begins anew
and is no mismatch.
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
from .in_sync import copy_counts
from .named_arrays import NamedArrays

_HEAD = 2  # numbers before the rest of the vector
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class KeptState:
    """The state of an optimizer on this worker, as variables under a strategy.

    It is arrays and numbers by name. Numbers (arrays without dimensions) are one vector of float64,
    so that a step counter of each parameter is no variable. It has, too, how often the optimizer
    was applied, by which program (a random number), and which entries it has a state for.

    Args:
        entries: First values of the state by name, of which shapes and dtypes count.
        load: Gives the optimizer entries, by name.
        strategy: Strategy under which the state is kept.
        kind: Kind of the optimizer, a part of the names.
        prefix: Prefix of all names; empty or without a slash at its end.

    Attributes:
        updates: Number of times that the optimizer was applied; a job that resumes goes on
            counting.
        steps: Steps since then; whoever makes one that counts adds it.
    """

    def __init__(
        self,
        entries: Mapping[str, Any],
        load: Callable[[Mapping[str, Array]], object],
        strategy: Strategy,
        *,
        kind: str,
        prefix: str,
    ) -> None:
        first = {name: np.asarray(entry) for name, entry in sorted(entries.items())}
        text = str([(name, array.shape, array.dtype.str) for name, array in first.items()])
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        self._load, self._strategy = load, strategy
        self._pushes = copy_counts(strategy)
        self._dtypes = {name: array.dtype for name, array in first.items()}
        self._numbers = [name for name, array in first.items() if not array.ndim]
        self._arrays = {name: array for name, array in first.items() if array.ndim}
        self._folder = "/".join(filter(None, (prefix, OPTIMIZER_STATE, f"{kind}-{digest}")))
        self._vector = f"{self._folder}/numbers"
        self.updates = 0
        self.steps = 0
        self._program = float(secrets.randbits(52))
        self._known: tuple[int, float] | None = None  # of the state that the optimizer has

    def variables(self) -> dict[str, Variable]:
        """Make them, for the tables of a store; by the names they have."""
        size = _HEAD + len(self._dtypes) + len(self._numbers)
        values: dict[str, Array] = {self._vector: np.zeros(size, np.float64)}
        values |= {f"{self._folder}/{name}": array for name, array in self._arrays.items()}
        with self._strategy.scope():
            return {
                name: Variable(value, name=name, trainable=False) for name, value in values.items()
            }

    @property
    def names(self) -> list[str]:
        """Names of the variables."""
        return [self._vector, *(f"{self._folder}/{name}" for name in self._arrays)]

    def pushed(self, now: Callable[[], Mapping[str, Any] | None]) -> dict[str, Array]:
        """Collect what this worker overwrites, by the names of variables; only the copy that counts
        has it.

        Args:
            now: Returns the state as it is; of an entry that is not there nothing is overwritten.
                None: it is of another form than the first one, and nothing is overwritten.
        """
        entries = now() if self._pushes else None
        if entries is None:
            return {}
        self.updates, self.steps = self.updates + self.steps, 0
        has = [name in entries for name in self._dtypes]
        numbers = [float(np.asarray(entries.get(name, 0))) for name in self._numbers]
        arrays = {
            f"{self._folder}/{name}": np.asarray(entries[name])
            for name in self._arrays
            if name in entries
        }
        counted = self._known = (self.updates, self._program)
        return {self._vector: np.array([*counted, *has, *numbers], np.float64), **arrays}

    def refresh(self, store: NamedArrays) -> None:
        """Have the optimizer go on with the job's state: the first time, and if one was restored.

        That of a worker which pushes none goes its own way after the first time.

        Args:
            store: Store that has the variables.
        """
        if self._known is not None:
            if not self._pushes:
                return
            updates, program, *_ = to_host(store.pull([self._vector])[self._vector])
            if (int(updates), float(program)) == self._known:
                return
        values = store.pull(self.names)
        vector = to_host(values[self._vector])
        self.updates, self.steps = int(vector[0]), 0
        self._known = (self.updates, float(vector[1]))
        if not self.updates:
            return
        count = len(self._dtypes)
        has = dict(zip(self._dtypes, vector[_HEAD : _HEAD + count], strict=True))
        numbers = dict(zip(self._numbers, vector[_HEAD + count :], strict=True))
        self._load(
            {
                name: np.asarray(numbers[name], dtype)
                if name in numbers
                else np.array(to_host(values[f"{self._folder}/{name}"]), dtype)
                for name, dtype in self._dtypes.items()
                if has[name]
            }
        )


def can_keep(entry: Any) -> bool:
    """Return whether an entry is numbers that a variable may have."""
    dtype = np.asarray(entry).dtype
    return dtype.kind in "biuf" or dtype == _BFLOAT16
