"""Replicas of PyTorch and TensorFlow: they compute one after the other, each on its device.

Operations for a GPU only wait in its queue, so several GPUs work side by side; replicas on logical
CPU devices do not. Weights are copied to the other devices at each step, and gradients come back by
the way of the copies, which adds them up.
"""

from contextlib import AbstractContextManager
from typing import Any

from .frameworks import framework_of_keras, keras


class InTurn:
    """A placement; see ``replicas.Placement``.

    Args:
        devices: Device of each replica: ``CPU`` or ``GPU``, and the framework's number.

    Attributes:
        distinct: Whether the replicas have several devices of the framework.
    """

    def __init__(self, devices: list[tuple[str, int]]) -> None:
        self._names = [f"{kind.lower()}:{number}" for kind, number in devices]
        self._on_torch = framework_of_keras() == "torch"
        if self._on_torch:  # which has one CPU
            self._names = ["cpu" if name.startswith("cpu") else name for name in self._names]
        self.distinct = len(set(self._names)) > 1

    def undivided(self, function: Any) -> Any:
        """Hide a function from ``torch.compile``, and from TensorFlow's autograph."""
        if self._on_torch:
            import torch

            return torch.compiler.disable(function)
        import tensorflow as tf

        return tf.autograph.experimental.do_not_convert(function)

    def device(self, replica: int) -> AbstractContextManager[Any]:
        """Keras' scope of a device."""
        scope: AbstractContextManager[Any] = keras.device(self._names[replica])
        return scope

    def move(self, value: Any, replica: int) -> Any:  # noqa: ARG002 - the scope's device
        """Copy a tensor to a replica's device, unless it is there already."""
        if self._on_torch:
            return keras.ops.convert_to_tensor(value)
        import tensorflow as tf

        return tf.identity(value)

    def home(self, value: Any) -> Any:
        """Move a tensor to Keras' device; TensorFlow moves by itself."""
        return keras.ops.convert_to_tensor(value) if self._on_torch else value

    def at_once(self, one: Any, values: Any, given: Any) -> None:
        """Return None: it is never done at once."""


def counts() -> dict[str, int]:
    """Count the framework's devices of each kind."""
    if framework_of_keras() == "torch":
        import torch

        return {"CPU": 1, "GPU": torch.cuda.device_count()}
    import tensorflow as tf

    return {kind: len(tf.config.list_logical_devices(kind)) for kind in ("CPU", "GPU")}
