"""Packing small arrays into large ones, so that many cost what their bytes cost. Pure decisions."""

from collections.abc import Sequence
from typing import Any

from ...core.arrays.any_framework import beside, namespace_of

_ALONE_BYTES = 1024 * 1024


def packs_by_bytes(sizes: Sequence[int], bytes_per_pack: int) -> list[list[int]]:
    """Choose the arrays that travel together.

    Arrays are walked through from the last to the first, as gradients are computed; a pack is
    closed as soon as its size exceeds the limit. As TensorFlow's ``group_by_size``.

    Args:
        sizes: Bytes per array.
        bytes_per_pack: The limit; 0: one pack.

    Returns:
        Numbers of each pack's arrays, ascending; packs in the order they are sent.
    """
    if not sizes:
        return []
    packs: list[list[int]] = [[]]
    filled = 0
    for number in reversed(range(len(sizes))):
        packs[-1].append(number)
        filled += sizes[number]
        if bytes_per_pack and filled > bytes_per_pack and number:
            packs.append([])
            filled = 0
    return [sorted(pack) for pack in packs]


def packs_to_send(sizes: Sequence[int], bytes_per_pack: int) -> list[list[int]]:
    """Choose packs as :func:`packs_by_bytes` does, but large arrays are not copied into a pack."""
    small = [i for i, size in enumerate(sizes) if size < _ALONE_BYTES]
    packs = packs_by_bytes([sizes[i] for i in small], bytes_per_pack)
    large = [[i] for i in reversed(range(len(sizes))) if sizes[i] >= _ALONE_BYTES]
    return [[small[i] for i in pack] for pack in packs] + large


def cuts_by_count(total: int, num_packs: int) -> list[tuple[int, int]]:
    """Cut ``total`` elements into ranges of ``num_packs`` equal parts; the last one takes the
    rest.
    """
    size = total // num_packs
    starts = [i * size for i in range(num_packs)]
    return list(zip(starts, [*starts[1:], total], strict=True))


def join(arrays: Sequence[Any]) -> Any:
    """Join several arrays of one dtype to a flat one."""
    with beside(arrays[0]):
        if len(arrays) == 1:
            return arrays[0].reshape(-1)
        return namespace_of(arrays[0]).concatenate([array.reshape(-1) for array in arrays])


def split(flat: Any, like: Sequence[Any]) -> list[Any]:
    """Take a joined array apart: views of the shapes of ``like``."""
    parts, start = [], 0
    for array in like:
        parts.append(flat[start : start + array.size].reshape(array.shape))
        start += array.size
    return parts


def by_dtype(arrays: Sequence[Any]) -> list[list[int]]:
    """Group the numbers of the arrays by dtype, in order."""
    groups: dict[str, list[int]] = {}
    for number, array in enumerate(arrays):
        groups.setdefault(array.dtype.name, []).append(number)
    return list(groups.values())
