"""Replicas of JAX: they compute in one compiled program, over a mesh of their devices.

``shard_map`` has every device call the model with its part of the batch; what follows (loss,
metrics) XLA divides among the devices as well, and gradients of the weights, of which each device
has all, are added up between them. A batch that cannot be cut into equal parts is computed whole on
every device, part after part, and so is every batch of replicas that share a device.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ...training.extras import require
from .frameworks import keras
from .jax_rows import JaxRowReader
from .replicas import Given, Made, One

jax: Any = require("jax", "keras")

_AXIS = "replica"


class OnMesh:
    """A placement; see ``replicas.Placement``.

    Args:
        devices: Devices of JAX, one for each replica.

    Attributes:
        readers: Readers of the embedding tables; each replica gets the rows for its examples.
        mesh: Mesh of the devices; None: replicas share one device.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        self.readers: list[JaxRowReader] = []
        distinct = len(set(devices)) == len(devices)
        self._count = len(devices)
        self.mesh: Any = jax.sharding.Mesh(np.array(devices), (_AXIS,)) if distinct else None

    # -- of a step ---------------------------------------------------------------------------

    def jit(self, function: Any, *, whole: Sequence[bool]) -> Any:
        """Compile a function of (state, data) for the mesh.

        Args:
            function: Function whose state every device has, before and after.
            whole: Whether every device has a result, for each of its results.
        """
        if self.mesh is None:
            return jax.jit(function)
        everywhere = self._sharding()
        outs = tuple(everywhere if on_every_device else None for on_every_device in whole)
        return jax.jit(function, in_shardings=(everywhere, None), out_shardings=outs)

    def placed(self, data: Any) -> Any:
        """Place a batch where the mesh wants it: each device has its examples, if they can be
        cut.
        """
        if self.mesh is None:
            return data

        def place(leaf: Any) -> Any:
            if leaf is None or not hasattr(leaf, "shape"):
                return leaf
            cut = leaf.ndim > 0 and leaf.shape[0] and leaf.shape[0] % self._count == 0
            return jax.device_put(leaf, self._sharding(_AXIS) if cut else self._sharding())

        return keras.tree.map_structure(place, data)

    def _sharding(self, *axes: str) -> Any:
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*axes))

    # -- of a call ---------------------------------------------------------------------------

    def undivided(self, function: Any) -> Any:
        """Return the function: JAX traces values, and compiles no Python."""
        return function

    def device(self, replica: int) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Enter the program's device."""
        return nullcontext()

    def move(self, value: Any, replica: int) -> Any:  # noqa: ARG002
        """Return the value: nothing has to move."""
        return value

    def home(self, value: Any) -> Any:
        """Return the value: nothing has to move."""
        return value

    def at_once(self, one: One, values: Sequence[Any], given: Given) -> list[Made] | None:
        """Run one program on all devices; None: no mesh, parts of unequal length, or not
        compiled.
        """
        asked = any(reader.asks for reader in self.readers)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in given.leaves)
        if self.mesh is None or asked or not traced or given.examples % self._count:
            return None
        cut, everywhere = jax.sharding.PartitionSpec(_AXIS), jax.sharding.PartitionSpec()
        is_tensor = [hasattr(leaf, "shape") for leaf in given.leaves]
        tensors = [leaf for leaf, flag in zip(given.leaves, is_tensor, strict=True) if flag]
        by_example = [d for d, flag in zip(given.divided, is_tensor, strict=True) if flag]
        rows = self._places_of_rows(values)
        results: list[Made] = []

        def call(values: Sequence[Any], tensors: Sequence[Any]) -> Any:
            left = iter(tensors)
            leaves = [
                next(left) if flag else leaf
                for leaf, flag in zip(given.leaves, is_tensor, strict=True)
            ]
            for reader in self.readers:
                reader.restart()
            offset = jax.numpy.asarray(given.offsets, "int32")[jax.lax.axis_index(_AXIS)]
            with _shaped([(variable, values[i].shape) for i, variable in rows.items()]):
                result = one(values, offset, given.rebuild(leaves))
            results.append(result)
            with_axis = partial(jax.tree.map, lambda value: value[None])
            return (
                keras.tree.flatten(result.outputs),
                [mask for mask in result.masks if mask is not None],
                with_axis(result.losses),
                with_axis(result.state),
            )

        divided = _shard_map(
            call,
            mesh=self.mesh,
            in_specs=(
                [cut if i in rows else everywhere for i in range(len(values))],
                [cut if flag else everywhere for flag in by_example],
            ),
            out_specs=cut,
        )
        flat, masks, losses, state = divided(list(values), tensors)
        result, left = results[-1], iter(masks)
        outputs = keras.tree.pack_sequence_as(result.outputs, list(flat))
        all_masks = [None if mask is None else next(left) for mask in result.masks]
        return [
            Made(
                outputs,
                all_masks,
                [loss[replica] for loss in losses],
                result.per_example,
                {number: value[replica] for number, value in state.items()},
            )
            for replica in range(self._count)
        ]

    def _places_of_rows(self, values: Sequence[Any]) -> dict[int, Any]:
        """Find the values that are rows of a batch, in the order of replicas, and their
        variables.
        """
        with keras.src.backend.AutocastScope(None):
            variables = {
                id(reader.layer._rows.value): reader.layer._rows for reader in self.readers
            }
        return {i: variables[id(value)] for i, value in enumerate(values) if id(value) in variables}


@contextmanager
def _shaped(shapes: Sequence[tuple[Any, tuple[int, ...]]]) -> Iterator[None]:
    """Give variables of Keras the shapes of what stands for them."""
    before = [(variable, variable._shape) for variable, _ in shapes]
    for variable, shape in shapes:
        variable._shape = tuple(shape)
    try:
        yield
    finally:
        for variable, shape in before:
            variable._shape = shape


def _shard_map(function: Callable[..., Any], **arguments: Any) -> Any:
    # Layers with loops (RNNs) begin them with zeros, which are the same on all devices: unchecked.
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, check_vma=False, **arguments)
    older: Any = import_module("jax.experimental.shard_map")
    return older.shard_map(function, check_rep=False, **arguments)


def devices_of(numbers: Sequence[tuple[str, int]]) -> list[Any]:
    """Find JAX's devices: ``CPU`` or ``GPU``, and the number among those of this process."""
    return [jax.local_devices(backend=kind.lower())[number] for kind, number in numbers]


def counts() -> dict[str, int]:
    """Count JAX's devices of each kind."""
    numbers = {}
    for kind in ("CPU", "GPU"):
        try:
            numbers[kind] = len(jax.local_devices(backend=kind.lower()))
        except RuntimeError:  # no such platform
            numbers[kind] = 0
    return numbers
