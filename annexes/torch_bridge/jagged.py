"""Ids of several features as TorchRec has them, and the rows of all features as one tensor.

TorchRec's own ``KeyedJaggedTensor`` is taken as this one is: by its methods. This one needs no
TorchRec, whose kernels are built for one version of PyTorch each.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.terminal import counted
from ...training.extras import require
from ..embedding.features.inputs import Ragged
from .tensors import to_array

torch: Any = require("torch", "torch")


class KeyedJaggedTensor:
    """Ids of several features, of any number in each example, in one tensor.

    Has the names of ``torchrec.KeyedJaggedTensor``. The ids of the first key come first, those of
    its first example before those of its second.

    Args:
        keys: Names of the features.
        values: Ids of all features; integers, shape ``(n,)``.
        weights: Weight of each id; shape ``(n,)``. None: 1.
        lengths: Number of ids of each example of each key; integers, shape ``(keys * examples,)``.
        offsets: Instead of them where each begins, and ``n``; integers, shape
            ``(keys * examples + 1,)``.

    Raises:
        ValueError: Lengths and offsets are both there or both missing, or do not fit the keys or
            the values.
    """

    def __init__(
        self,
        keys: Sequence[str],
        values: Any,
        weights: Any = None,
        lengths: Any = None,
        offsets: Any = None,
    ) -> None:
        self._keys, self._values, self._weights = list(keys), values, weights
        arrays = [None if tensor is None else to_array(tensor) for tensor in (lengths, offsets)]
        jagged = Ragged(to_array(values), row_lengths=arrays[0], offsets=arrays[1])
        if not self._keys or jagged.row_lengths.size % len(self._keys):
            raise ValueError(
                f"{counted(jagged.row_lengths.size, 'length')} for "
                f"{counted(len(self._keys), 'key')}; each key has one for every example"
            )
        if weights is not None and weights.numel() != values.numel():
            raise ValueError(f"there are {values.numel()} ids and {weights.numel()} weights")
        self._lengths = torch.from_numpy(jagged.row_lengths)

    @classmethod
    def from_lengths_sync(
        cls, keys: Sequence[str], values: Any, lengths: Any, weights: Any = None
    ) -> "KeyedJaggedTensor":
        """Make it of lengths."""
        return cls(keys, values, weights, lengths=lengths)

    @classmethod
    def from_offsets_sync(
        cls, keys: Sequence[str], values: Any, offsets: Any, weights: Any = None
    ) -> "KeyedJaggedTensor":
        """Make it of offsets."""
        return cls(keys, values, weights, offsets=offsets)

    def keys(self) -> list[str]:
        """List the names of the features."""
        return self._keys

    def values(self) -> Any:
        """Return the ids of all features; shape ``(n,)``."""
        return self._values

    def weights_or_none(self) -> Any:
        """Return the weights of the ids; None: 1."""
        return self._weights

    def lengths(self) -> Any:
        """Count the ids of each example of each key; int64, shape ``(keys * examples,)``."""
        return self._lengths


def ragged_of(jagged: Any) -> tuple[dict[str, Ragged], dict[str, Ragged] | None]:
    """Split into ids and weights of each feature, by its name; weights None: 1.

    Args:
        jagged: :class:`KeyedJaggedTensor` or TorchRec's.
    """
    keys = list(jagged.keys())
    values, lengths = to_array(jagged.values()), to_array(jagged.lengths())
    weights = jagged.weights_or_none()
    own = None if weights is None else to_array(weights)
    ids, scales, start = {}, {}, 0
    for key, part in zip(keys, lengths.reshape(len(keys), -1), strict=True):
        stop = start + int(part.sum())
        ids[key] = Ragged(values[start:stop], row_lengths=part)
        if own is not None:
            scales[key] = Ragged(own[start:stop], row_lengths=part)
        start = stop
    return ids, None if own is None else scales


class KeyedTensor:
    """Rows of several features, by name. Has the names of ``torchrec.KeyedTensor``.

    Args:
        rows: Rows by name of the feature: shape ``(examples, dim)``, or ``(examples,
            max_sequence_length, dim)``.
    """

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, key: str) -> Any:
        return self._rows[key]

    def keys(self) -> list[str]:
        """List the names of the features."""
        return list(self._rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the tensors by name."""
        return dict(self._rows)

    def length_per_key(self) -> list[int]:
        """Count the columns of :meth:`values` of each feature."""
        return [math.prod(rows.shape[1:]) for rows in self._rows.values()]

    def values(self) -> Any:
        """Join all rows side by side; shape ``(examples, sum of length_per_key)``."""
        return torch.cat([rows.flatten(1) for rows in self._rows.values()], 1)
