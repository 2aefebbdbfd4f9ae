"""``windlass.config``: devices of this process."""

from typing import TYPE_CHECKING

from ..core.public_names import refuse_others
from .base.devices import compute_devices as list_compute_devices
from .base.devices import (
    logical_cpu_devices,
    logical_gpu_devices,
    set_logical_cpu_devices,
    set_logical_gpu_devices,
)


def list_logical_devices(device_type: str | None = None) -> list[str]:
    """Names of the devices of this process; of one type (``"CPU"``, ``"GPU"``) if given."""
    kinds = {"CPU": logical_cpu_devices, "GPU": logical_gpu_devices}
    return [
        device
        for kind, names in kinds.items()
        if device_type is None or device_type.upper() == kind
        for device in names()
    ]


__all__ = [
    "list_compute_devices",
    "list_logical_devices",
    "set_logical_cpu_devices",
    "set_logical_gpu_devices",
]

if not TYPE_CHECKING:
    __getattr__ = refuse_others("windlass.config", __all__)
