"""MirroredStrategy: synchronous replicas on one machine's devices, with equal variable copies."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.contexts import is_running
from ..base.devices import check_exists, compute_devices
from ..base.reductions import VariableSynchronization
from ..runtime import TaskProgress
from ..variables.local import LocalVariable
from ..variables.mirrored import DistributedVariable, MirroredVariable, SyncOnReadVariable
from ..variables.spec import VariableSpec
from ..variables.variable import Variable
from .all_reduce import choose_cross_device_ops
from .cross_device_ops import CrossDeviceOps
from .extended import StrategyExtended
from .joining import runtime_of_job
from .reducer import Reducer
from .strategy import Strategy
from .synchronous_steps import OneWorker, SynchronousSteps


class MirroredStrategy(Strategy):
    """As ``tf.distribute.MirroredStrategy``.

    Args:
        devices: E.g. ``["GPU:0", "GPU:1"]``; None or empty: every GPU, or the (logical) CPU devices
            without one.
        cross_device_ops: How gradients are reduced; None: NCCL between GPUs, else on one device.

    Raises:
        AssertionError: A device is given twice. (``wl.config.set_logical_gpu_devices`` makes
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
        job = runtime.snapshots if runtime is not None else None
        if runtime is not None and job is not None and job.offer():
            self._mirrored.steps.join(job, OneWorker(runtime.task.task), job.restore_from)

    @property
    def global_step(self) -> int:
        """Steps that changed variables; a job that resumes goes on counting."""
        return self._mirrored.steps.global_step


def chosen_devices(devices: Sequence[str] | None) -> list[str]:
    """The devices a strategy was given, checked; or all there are.

    Raises:
        AssertionError: One is given twice.
        ValueError: One is not here.
    """
    chosen = [check_exists(device) for device in devices or compute_devices()]
    assert len(set(chosen)) == len(chosen), (  # noqa: S101 - as TensorFlow
        f"No duplicates allowed in `devices` argument: {devices}"
    )
    return chosen


class MirroredExtended(StrategyExtended):
    """The algorithms of strategies whose variables have a copy on every device.

    Args:
        strategy: Whose algorithms these are.
        devices: One per replica of this worker.
        cross_device_ops: How values of several of them become one.
        first_replica: Number of the first of them among those in sync.
        reducer: Reduces over the replicas; None: over those of this worker.
        progress: Of this task, for the status; None: nobody looks.

    Attributes:
        steps: Counted, and saved by the job.
    """

    def __init__(
        self,
        strategy: Strategy,
        devices: Sequence[str],
        cross_device_ops: CrossDeviceOps | None = None,
        first_replica: int = 0,
        reducer: Reducer | None = None,
        progress: TaskProgress | None = None,
    ) -> None:
        super().__init__(strategy, devices, cross_device_ops, first_replica, reducer)
        self._progress = progress
        self.steps = SynchronousSteps(progress)

    def create_variable(self, spec: VariableSpec) -> Variable:
        """Copies of one first value."""
        name = self.unique_name(spec.name)
        common = replace(spec, initial=self._first_value(spec), initializer=None)
        components = [
            LocalVariable(common, self._strategy, device, f"{name}/replica_{i}" if i else name)
            for i, device in enumerate(self._devices)
        ]
        on_read = spec.synchronization is VariableSynchronization.ON_READ
        kind: type[DistributedVariable] = SyncOnReadVariable if on_read else MirroredVariable
        variable = kind(spec, name, self._strategy, components)
        self.steps.add(variable)
        return variable

    def _first_value(self, spec: VariableSpec) -> Any:
        """What every copy begins with."""
        return np.asarray(spec.first_value())

    def scope_left(self) -> None:
        """Say what was restored of the variables made in the scope."""
        self.steps.tell_restored()

    # -- steps -------------------------------------------------------------------------------

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """One step on every replica; counted if it changes variables."""
        self.steps.begin()
        result = super().call_for_each_replica(fn, args, kwargs)
        if self._progress is not None:
            self._progress.steps += 1
        self.steps.end()
        return result

    def apply_gradients(self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> None:
        """Update variables; outside of ``run`` this is a step of its own."""
        is_step = not is_running(self._strategy)
        if is_step:
            self.steps.begin()
        self.steps.note_write()
        super().apply_gradients(optimizer, pairs)
        if is_step:
            self.steps.end()

    def update(
        self,
        var: Variable,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call a function for every copy of a variable, which may change it."""
        if isinstance(var, MirroredVariable):
            self.note_write()
        return super().update(var, fn, args, kwargs, group)

    def note_write(self) -> None:
        """A variable that the replicas share is being changed."""
        self.steps.note_write()
