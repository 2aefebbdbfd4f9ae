"""The coordinator of TensorFlow 2's parameter-server training: one program, and workers that run
what it schedules.
"""

from typing import TYPE_CHECKING

from ..core.public_face import public_getattr
from ..distribute.base.worker_index import experimental_get_current_worker_index
from ..distribute.coordinator.cluster_coordinator import ClusterCoordinator
from ..distribute.coordinator.remote_value import (
    PerWorkerDataset,
    PerWorkerValue,
    RemoteValue,
    RemoteValueStatus,
)

PerWorkerValues = PerWorkerValue
"""Name of the class in ``tf.distribute.experimental.coordinator``."""

__all__ = [
    "ClusterCoordinator",
    "PerWorkerDataset",
    "PerWorkerValue",
    "PerWorkerValues",
    "RemoteValue",
    "RemoteValueStatus",
    "experimental_get_current_worker_index",
]

if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.distribute.coordinator", globals())
