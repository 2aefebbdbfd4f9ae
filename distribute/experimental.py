"""``windlass.distribute.experimental``: names TensorFlow has there."""

from typing import Any

from ..cluster import partitioners
from .central_storage import CentralStorageStrategy
from .communication import (
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
)
from .multi_worker import MultiWorkerMirroredStrategy
from .parameter_server import ParameterServerStrategy
from .values import ValueContext

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "ValueContext",
    "partitioners",
]


def __getattr__(name: str) -> Any:
    if name == "TPUStrategy":
        from .tpu import explain

        explain(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
