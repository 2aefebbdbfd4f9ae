"""``windlass.config``: devices of this process."""

from .devices import compute_devices as list_compute_devices
from .devices import set_logical_cpu_devices

__all__ = ["list_compute_devices", "set_logical_cpu_devices"]
