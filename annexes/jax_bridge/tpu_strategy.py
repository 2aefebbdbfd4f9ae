"""TPUStrategy: synchronous replicas on the devices that JAX has in this process.

Variables and reductions are MirroredStrategy's, in the memory of the host. What is new is where a
replica computes: its thread runs with a device of its own as JAX's default, so that functions that
are jitted or not go there, and a replica may have several devices (logical ones), among which the
program divides arrays. On CPUs ``XLA_FLAGS=--xla_force_host_platform_device_count=8`` makes eight.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ...core.errors import ConfigurationError
from ...distribute.base.contexts import get_replica_context
from ...distribute.base.devices import in_task
from ...distribute.base.interface import Arguments, Keywords
from ...distribute.strategies.joining import runtime_of_job
from ...distribute.strategies.mirrored import MirroredExtended
from ...distribute.strategies.strategy import Strategy
from ...training.device_assignment import DeviceAssignment
from ...training.extras import require
from .tpu_resolver import TPUClusterResolver


class TPUStrategy(Strategy):
    """A strategy like ``tf.distribute.TPUStrategy``, on JAX's devices of this process, be they TPUs
    or others.

    ::

        strategy = rw.distribute.TPUStrategy()
        state = rw.training.jax.TrainState(params, optax.adam(1e-3), strategy)

        def step(batch):
            loss, gradients = loss_and_gradients(state.params, *batch)  # jitted
            state.apply_gradients(gradients)
            return loss

        losses = strategy.run(step, args=(batch,))

    ``run`` calls a function, which may be jitted itself, on every replica. A jitted function is
    compiled for each device, and what it reads of a variable while it is traced stays as it was:
    give it values as arguments.

    Args:
        tpu_cluster_resolver: Resolver of the devices; None: the devices of this process.
        experimental_device_assignment: Devices that a replica has; None: one each, all of them.
        experimental_spmd_xla_partitioning: Accepted, and without effect: JAX has XLA partition in
            no other way.

    Raises:
        MissingExtraError: JAX is not installed.
        ValueError: The assignment names a device that is not here.
        ConfigurationError: The resolver is another kind's.
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        experimental_device_assignment: DeviceAssignment | None = None,
        experimental_spmd_xla_partitioning: bool = False,  # noqa: ARG002 - TensorFlow's
    ) -> None:
        resolver = tpu_cluster_resolver or TPUClusterResolver()
        if not isinstance(resolver, TPUClusterResolver):
            raise ConfigurationError(
                f"TPUStrategy takes a TPUClusterResolver, not a {type(resolver).__name__}: its "
                "replicas are in this process. Between machines use MultiWorkerMirroredStrategy"
            )
        self._resolver = resolver
        devices = resolver.devices
        assignment = experimental_device_assignment or DeviceAssignment.build(
            num_replicas=len(devices)
        )
        highest = int(assignment.core_assignment.max())
        if highest >= len(devices):
            raise ValueError(
                f"the device assignment names device {highest}, and JAX has {len(devices)} here "
                f"(0 to {len(devices) - 1}): {assignment.core_assignment.tolist()}"
            )
        self._tpu = TPUExtended(
            self, [[devices[number] for number in row] for row in assignment.core_assignment]
        )
        super().__init__(self._tpu)

    @property
    def extended(self) -> "TPUExtended":
        """The algorithms."""
        return self._tpu

    @property
    def cluster_resolver(self) -> TPUClusterResolver:
        """Resolver that the constructor was given; else of this process."""
        return self._resolver

    @property
    def global_step(self) -> int:
        """Steps that changed variables."""
        return self._tpu.steps.global_step

    # -- logical devices ---------------------------------------------------------------------

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """Put an array on one of this replica's devices, where work with it is then done.

        Args:
            tensor: An array, not one of a function that is being traced.
            logical_device_id: Number in ``[0, logical devices of a replica)``.

        Raises:
            ValueError: There is no such logical device.
            TypeError: It is traced: JAX runs all of a jitted function on the same devices.
            RuntimeError: Not in ``run`` of this strategy.
        """
        devices = self._logical_devices("experimental_assign_to_logical_device")
        if not 0 <= logical_device_id < len(devices):
            raise ValueError(
                "`logical_core_id` to assign must be lower then total number of logical devices "
                f"per replica. Received logical device id {logical_device_id} but there are only "
                f"total of {len(devices)} logical devices in replica."
            )
        jax = self._tpu.jax
        if isinstance(tensor, jax.core.Tracer):
            raise TypeError(
                "experimental_assign_to_logical_device in a jitted function: JAX runs all of a "
                "function on the same devices. Assign its arguments, or split them"
            )
        return jax.device_put(tensor, devices[logical_device_id])

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """Divide an array among this replica's devices; XLA divides the work with it.

        Args:
            tensor: An array, or one of a function that is being traced.
            partition_dimensions: Number of parts into which each axis is cut; their product is the
                number of logical devices.

        Raises:
            ValueError: Another number of axes or of parts, or an axis that cannot be cut so.
            RuntimeError: Not in ``run`` of this strategy.
        """
        devices = self._logical_devices("experimental_split_to_logical_devices")
        shape, parts = tuple(tensor.shape), [int(count) for count in partition_dimensions]
        if len(parts) != len(shape):
            raise ValueError(
                "Length of `partition_dimensions` must equal to the rank of `tensor` "
                f"({len(parts)} vs. {len(shape)})"
            )
        if min(parts, default=1) < 1 or prod(parts) != len(devices):
            raise ValueError(
                f"The product of `partition_dimensions` {parts} should be equal to the number of "
                f"logical devices ({len(devices)})"
            )
        for axis, (size, count) in enumerate(zip(shape, parts, strict=True)):
            if size % count:
                raise ValueError(
                    f"Tensor shape at `partition_dimensions[{axis}]` must be divisible by "
                    f"corresponding value specified by `partition_dimensions` ({size} vs. {count})"
                )
        names = [f"axis_{axis}" for axis in range(len(parts))]
        return self._shard(tensor, devices, parts, names)

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """Have a copy of an array on each of this replica's devices.

        Args:
            tensor: An array, or one of a function that is being traced.

        Raises:
            RuntimeError: Not in ``run`` of this strategy.
        """
        devices = self._logical_devices("experimental_replicate_to_logical_devices")
        return self._shard(tensor, devices, [len(devices)], [])

    def _shard(
        self, tensor: Any, devices: Sequence[Any], parts: Sequence[int], spec: Sequence[str]
    ) -> Any:
        jax = self._tpu.jax
        grid = np.array(devices, object).reshape(parts)
        mesh = jax.sharding.Mesh(grid, [f"axis_{axis}" for axis in range(len(parts))])
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        if isinstance(tensor, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(tensor, sharding)
        return jax.device_put(tensor, sharding)

    def _logical_devices(self, method: str) -> Sequence[Any]:
        context = get_replica_context()
        if context is None or context.strategy is not self:
            raise RuntimeError(
                f"{method} outside of strategy.run: which replica's devices are meant is not known"
            )
        own: Sequence[Any] = self._tpu.jax_devices[context.local_id]
        return own


class ExperimentalTPUStrategy(TPUStrategy):
    """A strategy like ``tf.distribute.experimental.TPUStrategy``: the assignment has another name.

    Args:
        tpu_cluster_resolver: See :class:`TPUStrategy`.
        device_assignment: There ``experimental_device_assignment``.
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        device_assignment: DeviceAssignment | None = None,
    ) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)


class TPUExtended(MirroredExtended):
    """Algorithms of :class:`TPUStrategy`.

    Args:
        strategy: Strategy whose algorithms these are.
        jax_devices: Logical devices of each replica.

    Attributes:
        jax: The module.
        jax_devices: Logical devices of each replica.
        experimental_require_static_shapes: A function is compiled anew for every shape.
    """

    experimental_require_static_shapes = True

    def __init__(self, strategy: Strategy, jax_devices: Sequence[Sequence[Any]]) -> None:
        self.jax: Any = require("jax", "jax")
        self.jax_devices: Sequence[Sequence[Any]] = jax_devices
        # Variables are in the memory of the host, a copy for each replica.
        copies = [f"/device:CPU:{replica}" for replica in range(len(jax_devices))]
        runtime = runtime_of_job()
        super().__init__(strategy, copies, progress=runtime.progress if runtime else None)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The first logical device of each replica, named as TensorFlow does."""
        return tuple(
            in_task(self.task_name, f"/device:{first.platform.upper()}:{first.id}")
            for first, *_ in self.jax_devices
        )

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Arguments = (), kwargs: Keywords = None
    ) -> Any:
        """Make a step on every replica, each on its own device."""
        return super().call_for_each_replica(_OnItsDevice(fn, self), args, kwargs)


class _OnItsDevice:
    """Calls a function with the replica's first logical device as JAX's default."""

    def __init__(self, function: Callable[..., Any], extended: TPUExtended) -> None:
        self.__func__ = function  # whose steps these are
        self._extended = extended

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        context = get_replica_context()
        devices = self._extended.jax_devices[context.local_id if context is not None else 0]
        with self._extended.jax.default_device(devices[0]):
            return self.__func__(*args, **kwargs)
