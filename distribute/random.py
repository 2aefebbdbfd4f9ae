"""``ropewalk.random``: random numbers whose streams are independent per replica, and reproducible.

As ``tf.random.Generator`` under a strategy, on NumPy's generators.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arrays.dtypes import Array
from ..core.public_face import public_getattr
from .base.contexts import get_replica_context


class Generator:
    """Random numbers: in ``strategy.run`` each replica draws from a stream of its own.

    The stream of a replica depends on the seed and its number among the replicas in sync alone, so
    a program draws the same numbers whatever machine its replicas are on. Thread-safe between
    replicas.

    ::

        noise = rw.random.Generator.from_seed(1)
        strategy.run(lambda: noise.normal((2, 3)))

    Args:
        seed: Seed of all streams.
    """

    def __init__(self, seed: int) -> None:
        self._seed = int(seed)
        self._lock = threading.Lock()
        # Replica → its stream; -1: outside of replicas.
        self._streams: dict[int, np.random.Generator] = {}

    @classmethod
    def from_seed(cls, seed: int) -> "Generator":
        """Make a generator of this seed."""
        return cls(seed)

    @property
    def seed(self) -> int:
        """Seed of the generator."""
        return self._seed

    def numpy(self) -> np.random.Generator:
        """Return the current replica's stream, with everything NumPy can draw."""
        context = get_replica_context()
        replica = -1 if context is None else context.replica_id_in_sync_group
        with self._lock:
            if replica not in self._streams:
                self._streams[replica] = self._new(replica)
            return self._streams[replica]

    def _new(self, replica: int) -> np.random.Generator:
        sequence = np.random.SeedSequence(self._seed, spawn_key=(replica + 1,))
        return np.random.Generator(np.random.Philox(sequence))

    def normal(
        self,
        shape: tuple[int, ...],
        mean: float = 0.0,
        stddev: float = 1.0,
        dtype: Any = np.float32,
    ) -> Array:
        """Draw normally distributed numbers."""
        drawn = self.numpy().standard_normal(shape, np.float64) * stddev + mean
        return np.asarray(drawn, dtype)

    def uniform(
        self,
        shape: tuple[int, ...],
        minval: float = 0,
        maxval: float | None = None,
        dtype: Any = np.float32,
    ) -> Array:
        """Draw numbers evenly from ``[minval, maxval)``; ``maxval`` is needed for integers.

        Raises:
            ValueError: An integer dtype without ``maxval``.
        """
        kind = np.dtype(dtype)
        if kind.kind in "iu":
            if maxval is None:
                raise ValueError("uniform integers need maxval")
            return np.asarray(self.numpy().integers(int(minval), int(maxval), shape, kind))
        high = 1.0 if maxval is None else maxval
        drawn = np.asarray(self.numpy().uniform(minval, high, shape), kind)
        # The nearest number of a narrow dtype may be the end itself.
        below = np.nextafter(kind.type(high), kind.type(minval))
        return np.asarray(np.where(drawn >= kind.type(high), below, drawn), kind)

    def split(self, count: int = 1) -> list["Generator"]:
        """Split off generators that are drawn from this one's stream."""
        seeds = self.numpy().integers(0, 2**63, count)
        return [Generator(int(seed)) for seed in seeds]

    def state_dict(self) -> dict[str, Any]:
        """Return the position of every stream, as JSON could hold it."""
        with self._lock:
            streams = {
                str(replica): _plain(stream.bit_generator.state)
                for replica, stream in self._streams.items()
            }
        return {"seed": self._seed, "streams": streams}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a generator was."""
        with self._lock:
            self._seed = int(state["seed"])
            self._streams = {}
            for replica, where in state["streams"].items():
                stream = self._new(int(replica))
                stream.bit_generator.state = _arrays(where)
                self._streams[int(replica)] = stream


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _arrays(item) for key, item in value.items()}
    return np.asarray(value, np.uint64) if isinstance(value, list) else value


__all__ = ["Generator"]

if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.random", globals())
