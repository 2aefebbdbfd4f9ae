"""CentralStorageStrategy: one copy of the variables, synchronous replicas on several devices."""

from collections.abc import Sequence

from ..base.devices import HOST, check_exists, in_task
from ..runtime import TaskProgress
from ..variables.aggregating import AggregatingVariable
from ..variables.local import LocalVariable
from ..variables.spec import VariableSpec
from ..variables.variable import Variable
from .counted_steps import CountedStepsExtended
from .cross_device_ops import ReductionToOneDevice
from .joining import runtime_of_job
from .mirrored import chosen_devices
from .strategy import Strategy


class CentralStorageStrategy(Strategy):
    """A strategy like ``tf.distribute.experimental.CentralStorageStrategy``.

    Args:
        compute_devices: Devices of the replicas; None: every GPU, or the (logical) CPU devices
            without one.
        parameter_device: Device of the variables; None: the compute device if there is one, else
            the CPU.

    Raises:
        ValueError: A device is not here.
    """

    def __init__(
        self,
        compute_devices: Sequence[str] | None = None,
        parameter_device: str | None = None,
    ) -> None:
        devices = chosen_devices(compute_devices)
        if parameter_device is not None:
            where = check_exists(parameter_device)
        else:
            where = devices[0] if len(devices) == 1 else HOST
        runtime = runtime_of_job()
        progress = runtime.progress if runtime is not None else None
        self._central = CentralStorageExtended(self, devices, where, progress)
        super().__init__(self._central)
        self._central.join_job(runtime)

    @property
    def global_step(self) -> int:
        """Steps that changed variables; a job that resumes goes on counting."""
        return self._central.steps.global_step


class CentralStorageExtended(CountedStepsExtended):
    """The algorithms of :class:`CentralStorageStrategy`."""

    def __init__(
        self,
        strategy: Strategy,
        devices: Sequence[str],
        parameter_device: str,
        progress: TaskProgress | None = None,
    ) -> None:
        ops = ReductionToOneDevice(parameter_device)
        super().__init__(strategy, devices, ops, progress=progress)
        self._parameter_device = parameter_device

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The one that holds the variables."""
        return (in_task(self.task_name, self._parameter_device),)

    def create_variable(self, spec: VariableSpec) -> Variable:
        """Create a variable; with several replicas one that aggregates their writes."""
        name = self.unique_name(spec.name)
        value = LocalVariable(spec, self._strategy, self._parameter_device, name)
        made: Variable = (
            value if len(self.replica_devices) == 1 else AggregatingVariable(spec, value)
        )
        self.steps.add(made)
        return made
