"""``ropewalk.config``: devices of this process."""

from typing import TYPE_CHECKING

from ..core.public_face import public_getattr
from ..distribute.base.devices import compute_devices as list_compute_devices
from ..distribute.base.devices import (
    list_logical_devices,
    set_logical_cpu_devices,
    set_logical_gpu_devices,
)

__all__ = [
    "list_compute_devices",
    "list_logical_devices",
    "set_logical_cpu_devices",
    "set_logical_gpu_devices",
]

if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.config", globals())
