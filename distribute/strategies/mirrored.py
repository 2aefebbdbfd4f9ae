"""MirroredStrategy: synchronous replicas on one machine's devices, with equal variable copies."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.devices import check_exists, compute_devices
from ..base.reductions import VariableSynchronization
from ..variables.local import LocalVariable
from ..variables.mirrored import DistributedVariable, MirroredVariable, SyncOnReadVariable
from ..variables.spec import VariableSpec
from ..variables.variable import Variable
from .all_reduce import choose_cross_device_ops
from .counted_steps import CountedStepsExtended
from .cross_device_ops import CrossDeviceOps
from .joining import runtime_of_job
from .strategy import Strategy


class MirroredStrategy(Strategy):
    """A strategy like ``tf.distribute.MirroredStrategy``.

    Args:
        devices: E.g. ``["GPU:0", "GPU:1"]``; None or empty: every GPU, or the (logical) CPU devices
            without one.
        cross_device_ops: Reduction of gradients; None: NCCL between GPUs, else on one device.

    Raises:
        AssertionError: A device is given twice. (``rw.config.set_logical_gpu_devices`` makes
            several of one.)
        ValueError: A device is not here.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
    ) -> None:
        chosen = chosen_devices(devices)
        runtime = runtime_of_job()
        self._mirrored = MirroredExtended(
            self,
            chosen,
            cross_device_ops or choose_cross_device_ops(chosen),
            progress=runtime.progress if runtime is not None else None,
        )
        super().__init__(self._mirrored)
        self._mirrored.join_job(runtime)

    @property
    def global_step(self) -> int:
        """Steps that changed variables; a job that resumes goes on counting."""
        return self._mirrored.steps.global_step


def chosen_devices(devices: Sequence[str] | None) -> list[str]:
    """Check the devices a strategy was given; or list all there are.

    Raises:
        AssertionError: One is given twice.
        ValueError: One is not here.
    """
    chosen = [check_exists(device) for device in devices or compute_devices()]
    assert len(set(chosen)) == len(chosen), (  # noqa: S101 - as TensorFlow
        f"No duplicates allowed in `devices` argument: {devices}"
    )
    return chosen


class MirroredExtended(CountedStepsExtended):
    """The algorithms of strategies whose variables have a copy on every device."""

    def create_variable(self, spec: VariableSpec) -> Variable:
        """Create copies of one first value."""
        name = self.unique_name(spec.name)
        common = replace(spec, initial=self._first_value(spec), initializer=None)
        components = [
            LocalVariable(common, self._strategy, device, f"{name}/replica_{i}" if i else name)
            for i, device in enumerate(self.replica_devices)
        ]
        on_read = spec.synchronization is VariableSynchronization.ON_READ
        if not on_read:
            spec = replace(spec, synchronization=VariableSynchronization.ON_WRITE)
        kind: type[DistributedVariable] = SyncOnReadVariable if on_read else MirroredVariable
        variable = kind(spec, name, self._strategy, components)
        self.steps.add(variable)
        return variable

    def _first_value(self, spec: VariableSpec) -> Any:
        """Make the value that every copy begins with."""
        return np.asarray(spec.first_value())

    def _note_update(self, var: Variable) -> None:
        if isinstance(var, MirroredVariable):
            self.note_write()
