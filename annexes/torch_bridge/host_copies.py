"""Copies of gradients of a GPU, in pinned memory of the host that is kept for them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ...core.arrays.buffers import in_lines
from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...training.extras import require
from .tensors import synchronize, to_gradient

torch: Any = require("torch", "torch")

_LEAST_BYTES = 4096  # of a page, which is what pinning is for


class HostCopies:
    """Copies of gradients on another device, in memory of the host that is kept for them.

    Copies of all gradients are started before any is waited for, into few blocks of pinned memory
    that they share, see :func:`blocks_of`: PyTorch takes a power of two for each.

    Args:
        on_host: Whether a tensor's memory is the host's.
        allocate: A flat ``uint8`` tensor of so many bytes for tensors of a device; None: pinned if
            the device is CUDA's.
        wait: Waits for the copies from a device; None: torch's of the device.
    """

    def __init__(
        self,
        on_host: Callable[[Any], bool] | None = None,
        allocate: Callable[[int, Any], Any] | None = None,
        wait: Callable[[Any], None] | None = None,
    ) -> None:
        self._on_host = on_host if on_host is not None else _on_host
        self._allocate = allocate if allocate is not None else _memory
        self._wait = wait if wait is not None else synchronize
        self._buffers: dict[str, Any] = {}

    def gradients(self, tensors: Mapping[str, Any]) -> dict[str, Array | IndexedSlices]:
        """Copy gradients, by name. Those of another device stay as they are until the next call.

        Args:
            tensors: Gradients by name, dense or sparse.
        """
        elsewhere = {
            name: tensor
            for name, tensor in tensors.items()
            if not self._on_host(tensor) and tensor.layout is torch.strided
        }
        copied = self._copied(elsewhere) if elsewhere else {}
        return {name: to_gradient(copied.get(name, tensor)) for name, tensor in tensors.items()}

    def _copied(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        self._make_buffers(tensors)
        devices: dict[Any, None] = {}
        with torch.no_grad():
            for name, tensor in tensors.items():
                self._buffers[name].copy_(tensor, non_blocking=True)
                devices[tensor.device] = None
        for device in devices:
            self._wait(device)
        return {name: self._buffers[name] for name in tensors}

    def _make_buffers(self, tensors: Mapping[str, Any]) -> None:
        """Make those that are missing, or of another shape or dtype."""
        by_kind: dict[str, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                self._buffers.pop(name, None)
                by_kind.setdefault(tensor.device.type, {})[name] = tensor
        for missing in by_kind.values():
            names, device = list(missing), next(iter(missing.values())).device
            sizes = [tensor.numel() * tensor.element_size() for tensor in missing.values()]
            for num_bytes, numbers in blocks_of(sizes):
                block = self._allocate(num_bytes, device)
                starts = accumulate((in_lines(sizes[i]) for i in numbers), initial=0)
                for i, start in zip(numbers, starts, strict=False):
                    like = missing[names[i]]
                    part = block[start : start + sizes[i]]
                    self._buffers[names[i]] = part.view(like.dtype).view(like.shape)


def blocks_of(sizes: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Plan blocks of memory for arrays, and the numbers of the arrays in each, in order.

    Each block is a power of two, as PyTorch rounds pinned memory up to one: the largest that what
    is left fills, or that the largest array needs. So many arrays of some MB take little more than
    their bytes, where one block for each took up to twice that; one array that is larger than all
    others together still may.

    Args:
        sizes: Bytes of each array.
    """
    lines = [in_lines(size) for size in sizes]
    left = sorted(range(len(sizes)), key=lambda i: -lines[i])
    blocks: list[tuple[int, list[int]]] = []
    while left:
        total = sum(lines[i] for i in left)
        num_bytes = max(_LEAST_BYTES, _power_up(lines[left[0]]), _power_up(total + 1) // 2)
        free, taken = num_bytes, []
        for i in left:  # the largest first
            if lines[i] <= free:
                taken.append(i)
                free -= lines[i]
        blocks.append((num_bytes, taken))
        left = [i for i in left if i not in set(taken)]
    return blocks


def _power_up(number: int) -> int:
    """Round up to a power of two."""
    return 1 << max(0, number - 1).bit_length()


def _on_host(tensor: Any) -> bool:
    return bool(tensor.is_cpu)


def _memory(num_bytes: int, device: Any) -> Any:
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
