"""Tensors of PyTorch as arrays, and back; memory of the host is shared, not copied."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ...core.arrays.dtypes import Array, same_values
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.process.accelerators import pin_memory_with
from ...training.extras import require

torch: Any = require("torch", "torch")

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def to_array(tensor: Any) -> Array:
    """View a dense tensor as an array: of the same memory on the host, copied there from a GPU."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.dtype is torch.bfloat16:  # of which NumPy knows nothing
        tensor = tensor.view(torch.int16)
        array: Array = tensor.numpy().view(_BFLOAT16)
    else:
        array = tensor.numpy()
    return array


def to_gradient(tensor: Any) -> Array | IndexedSlices:
    """Convert a gradient; of a sparse one its rows, which may repeat."""
    if tensor.layout is not torch.sparse_coo:
        return to_array(tensor)
    if tensor.sparse_dim() != 1:
        return to_array(tensor.to_dense())
    (rows,) = to_array(tensor._indices())
    return IndexedSlices(to_array(tensor._values()), rows, tuple(tensor.shape))


def pin_values_for(tensors: Iterable[Any]) -> None:
    """Have values that are pulled in memory that CUDA copies as it is, where tensors are there."""
    if any(tensor.device.type == "cuda" for tensor in tensors):
        pin_memory_with(_pinned_memory)


def _pinned_memory(num_bytes: int) -> Array:
    memory: Array = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return memory


def synchronize(device: Any) -> None:
    """Wait for the copies of a device, in the stream that is current there."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    elif device.type != "cpu":
        torch.accelerator.synchronize(device)


def from_gradient(gradient: Array | IndexedSlices, parameter: Any) -> Any:
    """Convert a gradient to the tensor that ``parameter.grad`` would be; rows to a sparse one."""
    if not isinstance(gradient, IndexedSlices):
        return to_tensor(gradient).to(parameter)
    rows, values = to_tensor(gradient.indices), to_tensor(gradient.values).to(parameter)
    return torch.sparse_coo_tensor(rows[None], values, parameter.shape)


class Targets:
    """Tensors into which values are loaded, in place, in every step.

    A copy by PyTorch takes 5 µs however small it is, as long as a bridge may take for all of a
    small model. So values are copied into arrays of the tensors' memory, and PyTorch is told that
    it has changed: backward through what was computed before is then the error it has to be.

    Args:
        tensors: Tensors by name; on any device.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._views: dict[str, tuple[tuple[Any, ...], Array] | None] = {}
        self._marks: dict[str, tuple[int, int]] = {}  # of tensors on other devices, when loaded

    def load(self, values: Mapping[str, Array]) -> None:
        """Copy the values of all tensors; ``values`` may have more."""
        elsewhere: list[str] = []
        for name, tensor in self._tensors.items():
            view = self._view(name, tensor)
            if view is None:
                elsewhere.append(name)
            else:
                view[...] = values[name]
                mark_changed(tensor)
        if not elsewhere:
            return
        copy_into([(self._tensors[name], values[name]) for name in elsewhere])
        for name in elsewhere:
            self._marks[name] = _mark(self._tensors[name])

    def changed(self, names: Iterable[str], given: Mapping[str, Array]) -> dict[str, Array]:
        """Copy tensors that have other values than they were given, in the dtype of these.

        Values on the host are compared, which takes as long as a copy of them: what is done to
        ``Tensor.data`` has no mark. On another device only marks are compared.

        Args:
            names: Names of the tensors to compare.
            given: The values that were loaded last, by name.
        """
        values: dict[str, Array] = {}
        for name in names:
            tensor = self._tensors[name]
            before, now = given[name], self._view(name, tensor)
            if now is None and self._marks.get(name) != _mark(tensor):
                now = to_array(tensor)
            if now is None or now.shape != before.shape:
                continue
            if not same_values(now, before):
                values[name] = now.astype(before.dtype)
        return values

    @property
    def moved(self) -> bool:
        """Whether a tensor has other memory than when its array was made."""
        views = self._views
        for name, tensor in self._tensors.items():
            entry = views.get(name)
            if entry is None or entry[0] != (tensor.data_ptr(), tensor.stride()):
                return True
        return False

    def keep_memory(self) -> None:
        """Give tensors whose memory was replaced their earlier memory, with the values of now."""
        for name, tensor in self._tensors.items():
            entry = self._views.get(name)
            if entry is None or entry[0] == (tensor.data_ptr(), tensor.stride()):
                continue
            memory = entry[1]
            if memory.shape == tuple(tensor.shape):
                memory[...] = to_array(tensor)
                tensor.data = to_tensor(memory)

    def arrays(self) -> dict[str, Array] | None:
        """Return the memory of all tensors; None: some are not on the host."""
        arrays: dict[str, Array] = {}
        for name, tensor in self._tensors.items():
            view = self._view(name, tensor)
            if view is None:
                return None
            arrays[name] = view
        return arrays

    def _view(self, name: str, tensor: Any) -> Array | None:
        """View the tensor's memory; None: it is not on the host, or no array can have it."""
        where = (tensor.data_ptr(), tensor.stride())
        entry = self._views.get(name)
        if entry is not None and entry[0] == where:
            return entry[1]
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
            return None
        view = to_array(tensor)
        self._views[name] = (where, view)
        return view


def copy_into(pairs: Sequence[tuple[Any, Array]]) -> None:
    """Copy arrays into tensors, wherever these are; all copies are started, then waited for."""
    with torch.no_grad():
        for tensor, value in pairs:
            tensor.copy_(to_tensor(value), non_blocking=True)
    # Until then the values' memory may not be used again.
    for device in {tensor.device for tensor, _ in pairs}:
        synchronize(device)


def _mark(tensor: Any) -> tuple[int, int]:
    """Return a mark that is another one after each change in place, but for those of
    ``Tensor.data``.
    """
    return tensor.data_ptr(), tensor._version


mark_changed = torch.autograd.graph.increment_version


def to_tensor(array: Array) -> Any:
    """View an array as a tensor that is only read: of the same memory."""
    if array.dtype == _BFLOAT16:
        return to_tensor(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_dlpack(array)
    except BufferError:  # a NumPy before 2.1 exports no read-only memory
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(array)
