"""Devices on which a replica of TPUStrategy computes, as in ``tf.tpu.experimental``. As
``tf.tpu.experimental``'s class.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Self

import numpy as np


class DeviceAssignment:
    """Logical devices of each replica, as numbers of JAX's devices of this process.

    ::

        assignment = rw.distribute.experimental.DeviceAssignment.build(
            computation_shape=[1, 1, 1, 2], num_replicas=4
        )
        strategy = rw.distribute.TPUStrategy(experimental_device_assignment=assignment)

    Args:
        topology: Accepted as TensorFlow's programs give it. Numbers of devices, in the order of
            ``jax.local_devices()``, stand for coordinates here.
        core_assignment: Integers, shape ``(replicas, logical devices of each)``; a last axis of
            length 1 is dropped.

    Attributes:
        topology: Topology that the constructor was given.
        core_assignment: Core assignment that the constructor was given, shape ``(replicas, logical
            devices of each)``, int64. Read-only.

    Raises:
        ValueError: It has another shape, a number below 0, or one twice.
    """

    def __init__(self, topology: Any, core_assignment: Any) -> None:
        self.topology = topology
        assigned = np.array(core_assignment, np.int64)
        numbers = assigned[..., 0] if assigned.ndim == 3 and assigned.shape[-1] == 1 else assigned
        if numbers.ndim != 2 or not numbers.size:
            raise ValueError(
                f"core_assignment has shape {assigned.shape}; it is (replicas, devices of each), "
                "with the number of a device of jax.local_devices() at each place"
            )
        if numbers.min() < 0 or len(set(numbers.flat)) != numbers.size:
            raise ValueError(
                f"core_assignment {numbers.tolist()} has a number below 0, or a device twice"
            )
        numbers.flags.writeable = False
        self.core_assignment = numbers

    @classmethod
    def build(
        cls,
        topology: Any = None,
        computation_shape: Sequence[int] | None = None,
        computation_stride: Sequence[int] | None = None,
        num_replicas: int = 1,
    ) -> Self:
        """Assign neighbouring devices to each replica.

        Args:
            topology: See the class.
            computation_shape: Logical devices of a replica along each axis of a TPU's topology;
                their product counts here. None: one.
            computation_stride: All ones, or None.
            num_replicas: Number of replicas.

        Raises:
            ValueError: A number below 1, or another stride.
        """
        if computation_stride is not None and any(step != 1 for step in computation_stride):
            raise ValueError(
                f"computation_stride {list(computation_stride)}: only ones are supported; name "
                "the devices of each replica with DeviceAssignment(None, core_assignment)"
            )
        per_replica = prod(computation_shape or [1])
        if per_replica < 1 or num_replicas < 1:
            raise ValueError(
                f"computation_shape {computation_shape} and num_replicas {num_replicas} must be at "
                "least 1"
            )
        return cls(
            topology, np.arange(num_replicas * per_replica).reshape(num_replicas, per_replica)
        )

    @property
    def num_replicas(self) -> int:
        """Number of replicas."""
        return int(self.core_assignment.shape[0])

    @property
    def num_cores_per_replica(self) -> int:
        """Logical devices of each."""
        return int(self.core_assignment.shape[1])

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """Find the number of a replica's logical device in ``jax.local_devices()``."""
        return int(self.core_assignment[replica, logical_core])
