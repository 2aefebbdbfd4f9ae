"""OneDeviceStrategy: everything on one device, to try a program without distribution."""

from ..base.devices import check_exists
from .extended import StrategyExtended
from .strategy import Strategy


class OneDeviceStrategy(Strategy):
    """As ``tf.distribute.OneDeviceStrategy``.

    Args:
        device: E.g. ``"/cpu:0"`` or ``"/gpu:0"``.

    Raises:
        ValueError: There is no such device here.
    """

    def __init__(self, device: str) -> None:
        super().__init__(StrategyExtended(self, [check_exists(device)]))
