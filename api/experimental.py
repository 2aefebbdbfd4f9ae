"""``ropewalk.distribute.experimental``: names TensorFlow has there."""

from typing import TYPE_CHECKING

from ..cluster import placement as partitioners
from ..core.public_face import public_getattr
from ..distribute.base.communication import (
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
)
from ..distribute.base.values import ValueContext
from ..distribute.strategies.central_storage import CentralStorageStrategy
from ..distribute.strategies.parameter_server import ParameterServerStrategy

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

if TYPE_CHECKING:
    from ..annexes.jax_bridge.tpu_strategy import ExperimentalTPUStrategy as TPUStrategy
    from ..annexes.preemption.handler import PreemptionCheckpointHandler, TerminationConfig
    from ..annexes.ring.multi_worker import (
        ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
    )
    from ..distribute import coordinator
    from ..training.device_assignment import DeviceAssignment

    __all__ += [
        "DeviceAssignment",
        "PreemptionCheckpointHandler",
        "TPUStrategy",
        "TerminationConfig",
    ]
else:
    __getattr__ = public_getattr(
        "ropewalk.distribute.experimental",
        globals(),
        later={
            "DeviceAssignment": "training.device_assignment:DeviceAssignment",
            "MultiWorkerMirroredStrategy": (
                "annexes.ring.multi_worker:ExperimentalMultiWorkerMirroredStrategy"
            ),
            "PreemptionCheckpointHandler": (
                "annexes.preemption.handler:PreemptionCheckpointHandler"
            ),
            "TerminationConfig": "annexes.preemption.handler:TerminationConfig",
            "TPUStrategy": "annexes.jax_bridge.tpu_strategy:ExperimentalTPUStrategy",
            "coordinator": "distribute.coordinator",
        },
    )
