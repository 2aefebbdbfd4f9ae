"""OneDeviceStrategy: everything on one device, to try a program without distribution."""

from ..base.devices import check_exists, compute_devices
from ..runtime import TaskProgress
from ..variables.spec import VariableSpec
from ..variables.variable import Variable
from .counted_steps import CountedStepsExtended
from .joining import runtime_of_job
from .strategy import Strategy


class OneDeviceStrategy(Strategy):
    """A strategy like ``tf.distribute.OneDeviceStrategy``.

    Args:
        device: E.g. ``"/cpu:0"`` or ``"/gpu:0"``; None or empty: the first GPU, or the CPU without
            one.

    Raises:
        ValueError: There is no such device here.
    """

    def __init__(self, device: str | None) -> None:
        runtime = runtime_of_job()
        progress = runtime.progress if runtime is not None else None
        chosen = compute_devices()[0] if device is None or device == "" else check_exists(device)
        self._one_device = _OneDeviceExtended(self, chosen, progress)
        super().__init__(self._one_device)
        self._one_device.join_job(runtime)

    @property
    def global_step(self) -> int:
        """Steps that changed variables; a job that resumes goes on counting."""
        return self._one_device.steps.global_step


class _OneDeviceExtended(CountedStepsExtended):
    def __init__(self, strategy: Strategy, device: str, progress: TaskProgress | None) -> None:
        super().__init__(strategy, [device], progress=progress)

    def create_variable(self, spec: VariableSpec) -> Variable:
        """Create a variable on the device."""
        made = super().create_variable(spec)
        self.steps.add(made)
        return made
