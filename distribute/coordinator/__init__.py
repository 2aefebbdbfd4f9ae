"""The coordinator of TensorFlow 2's parameter-server training: one program, and workers that run
what it schedules.
"""

from typing import TYPE_CHECKING

from ...core.public_names import refuse_others
from ..base.worker_index import experimental_get_current_worker_index
from .cluster_coordinator import ClusterCoordinator
from .per_worker import PerWorkerDataset, PerWorkerValue
from .remote_value import RemoteValue, RemoteValueStatus

PerWorkerValues = PerWorkerValue
"""As ``tf.distribute.experimental.coordinator`` calls it."""

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
    __getattr__ = refuse_others("windlass.distribute.coordinator", __all__)
