"""The devices of a strategy's replicas, as the framework under Keras has them."""

import re
from typing import Any

from ...core.errors import ConfigurationError
from ...distribute.base.devices import is_gpu, physical_gpu
from ...distribute.strategies.strategy import Strategy
from .frameworks import framework_of_keras
from .replica_parts import device_numbers
from .replicas import Placement

_NAMES = {"jax": "JAX", "torch": "PyTorch", "tensorflow": "TensorFlow"}


def placement_of(strategy: Strategy) -> Placement:
    """Choose where the replicas of this process compute.

    Raises:
        ConfigurationError: The framework has not a device that the strategy names, or the strategy
            is for devices of another framework.
    """
    framework, kind = framework_of_keras(), type(strategy).__name__
    of_jax = getattr(strategy.extended, "jax_devices", None)
    if of_jax is not None:
        if framework != "jax":
            raise ConfigurationError(
                f"{kind} has devices of JAX, and Keras runs on {_NAMES[framework]}; set "
                "KERAS_BACKEND=jax before Keras is imported, or take MirroredStrategy"
            )
        several = next((len(row) for row in of_jax if len(row) > 1), None)
        if several:
            raise ConfigurationError(
                f"{kind} gives a replica {several} logical devices, among which a Keras model "
                "divides nothing; give each replica one device"
            )
        from .jax_replicas import OnMesh

        return OnMesh([row[0] for row in of_jax])
    wanted = [_numbered(device) for device in strategy.extended.replica_devices]
    there: dict[str, int]
    if framework == "jax":
        from . import jax_replicas

        there = jax_replicas.counts()
        numbers = device_numbers(wanted, there, kind, _NAMES[framework])
        return jax_replicas.OnMesh(jax_replicas.devices_of(numbers))
    from . import eager_replicas

    there = eager_replicas.counts()
    return eager_replicas.InTurn(device_numbers(wanted, there, kind, _NAMES[framework]))


def _numbered(device: Any) -> tuple[str, int]:
    """Find the kind of a device of ours, and its number; of logical GPUs that of the real one."""
    if is_gpu(device):
        return "GPU", physical_gpu(device)
    match = re.search(r"(\d+)$", device)
    return "CPU", int(match[1]) if match else 0
