"""``ropewalk.distribute``: the programming model.

Names, signatures and semantics are those of ``tf.distribute``, without TensorFlow;
``docs/tf-distribute.md`` lists every name of it with its state here.
"""

from typing import TYPE_CHECKING

from ..client.ps.snapshot import PsSnapshot
from ..cluster import placement
from ..cluster import placement as partitioners
from ..core.public_face import public_getattr
from ..core.wire.steps import WireFormat
from ..distribute import cluster_resolver, experimental
from ..distribute.base.communication import CommunicationImplementation, CommunicationOptions
from ..distribute.base.contexts import (
    ReplicaContext,
    experimental_set_strategy,
    get_loss_reduction,
    get_replica_context,
    has_strategy,
    in_cross_replica_context,
)
from ..distribute.base.reductions import ReduceOp
from ..distribute.base.values import DistributedValues, Mirrored, PerReplica, ValueContext
from ..distribute.data.distributed import DistributedDataset, DistributedIterator
from ..distribute.data.options import InputContext, InputOptions, InputReplicationMode
from ..distribute.strategies.all_reduce import HierarchicalCopyAllReduce, NcclAllReduce
from ..distribute.strategies.central_storage import CentralStorageStrategy
from ..distribute.strategies.cross_device_ops import CrossDeviceOps, ReductionToOneDevice
from ..distribute.strategies.default import get_strategy
from ..distribute.strategies.extended import StrategyExtended
from ..distribute.strategies.mirrored import MirroredStrategy
from ..distribute.strategies.one_device import OneDeviceStrategy
from ..distribute.strategies.parameter_server import ParameterServerStrategy
from ..distribute.strategies.strategy import RunOptions, Strategy
from ..distribute.variables.aggregating import AggregatingVariable
from ..distribute.variables.mirrored import (
    DistributedVariable,
    MirroredVariable,
    SyncOnReadVariable,
)
from ..distribute.variables.sharded import ShardedVariable

__all__ = [
    "AggregatingVariable",
    "CentralStorageStrategy",
    "CollectiveAllReduceStrategy",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "DistributedVariable",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "MirroredVariable",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerReplica",
    "PsSnapshot",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "ShardedVariable",
    "Strategy",
    "StrategyExtended",
    "SyncOnReadVariable",
    "ValueContext",
    "WireFormat",
    "cluster_resolver",
    "coordinator",
    "experimental",
    "experimental_set_strategy",
    "get_loss_reduction",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "partitioners",
    "placement",
]

if TYPE_CHECKING:
    from ..annexes.jax_bridge.tpu_strategy import TPUStrategy
    from ..annexes.ring.multi_worker import (
        CollectiveAllReduceStrategy,
        MultiWorkerMirroredStrategy,
    )
    from ..distribute import coordinator
    from ..worker.standard_server import Server, ServerDef

    __all__ += ["Server", "ServerDef", "TPUStrategy"]
else:
    # What only some programs need. In `__all__` is what `import *` may load.
    __getattr__ = public_getattr(
        "ropewalk.distribute",
        globals(),
        later={
            "CollectiveAllReduceStrategy": "annexes.ring.multi_worker:CollectiveAllReduceStrategy",
            "MultiWorkerMirroredStrategy": "annexes.ring.multi_worker:MultiWorkerMirroredStrategy",
            "Server": "worker.standard_server:Server",
            "ServerDef": "worker.standard_server:ServerDef",
            "TPUStrategy": "annexes.jax_bridge.tpu_strategy:TPUStrategy",
            "coordinator": "distribute.coordinator",
        },
    )
