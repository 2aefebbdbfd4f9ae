"""``windlass.distribute.experimental``: names TensorFlow has there."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..cluster import partitioners
from ..cluster.resolver import ClusterResolver
from ..core.public_names import missing_name
from .base.communication import (
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
)
from .base.values import ValueContext
from .strategies import multi_worker
from .strategies.central_storage import CentralStorageStrategy
from .strategies.parameter_server import ParameterServerStrategy


class MultiWorkerMirroredStrategy(multi_worker.MultiWorkerMirroredStrategy):
    """As ``tf.distribute.experimental.MultiWorkerMirroredStrategy``, with its arguments.

    Args:
        communication: What carries collective operations.
        cluster_resolver: Where the cluster comes from; None: TF_CONFIG, the launcher, or this
            process alone.

    Raises:
        ConfigurationError: See ``windlass.distribute.MultiWorkerMirroredStrategy``.
        JoinTimeoutError: A worker did not come.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        super().__init__(cluster_resolver, CommunicationOptions(implementation=communication))


if TYPE_CHECKING:
    from . import coordinator

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "ValueContext",
    "coordinator",
    "partitioners",
]


def __getattr__(name: str) -> Any:
    if name == "coordinator":
        return import_module(f"{__package__}.coordinator")
    if name == "TPUStrategy":
        return import_module("windlass.training.tpu_strategy").ExperimentalTPUStrategy
    if name == "DeviceAssignment":
        return import_module("windlass.training.device_assignment").DeviceAssignment
    raise missing_name(
        "windlass.distribute.experimental", name, (*__all__, "DeviceAssignment", "TPUStrategy")
    )
