"""The programming model: strategies, variables, contexts, values, reductions, input.

Names, signatures and semantics are those of ``tf.distribute``, without TensorFlow;
``docs/tf-distribute.md`` lists every name of it with its state here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..cluster import partitioners, placement
from ..core.public_names import missing_name
from ..core.wire_format import WireFormat
from . import cluster_resolver, experimental
from .base.communication import CommunicationImplementation, CommunicationOptions
from .base.contexts import (
    ReplicaContext,
    experimental_set_strategy,
    get_loss_reduction,
    get_replica_context,
    has_strategy,
    in_cross_replica_context,
)
from .base.reductions import ReduceOp
from .base.values import DistributedValues, Mirrored, PerReplica, ValueContext
from .data.distributed import DistributedDataset, DistributedIterator
from .data.options import InputContext, InputOptions, InputReplicationMode
from .strategies.all_reduce import HierarchicalCopyAllReduce, NcclAllReduce
from .strategies.central_storage import CentralStorageStrategy
from .strategies.cross_device_ops import CrossDeviceOps, ReductionToOneDevice
from .strategies.default import get_strategy
from .strategies.extended import StrategyExtended
from .strategies.mirrored import MirroredStrategy
from .strategies.multi_worker import CollectiveAllReduceStrategy, MultiWorkerMirroredStrategy
from .strategies.one_device import OneDeviceStrategy
from .strategies.parameter_server import ParameterServerStrategy
from .strategies.run_options import RunOptions
from .strategies.strategy import Strategy
from .variables.aggregating import AggregatingVariable
from .variables.mirrored import DistributedVariable, MirroredVariable, SyncOnReadVariable
from .variables.sharded import ShardedVariable

if TYPE_CHECKING:
    from . import coordinator

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


def __getattr__(name: str) -> Any:
    if name == "coordinator":  # loads what only a coordinator's program needs
        return import_module(f"{__name__}.coordinator")
    if name in ("Server", "ServerDef"):  # by name, since the roles of tasks are above this room
        return getattr(import_module("windlass.worker.standard_server"), name)
    if name == "TPUStrategy":  # by name, since frameworks are known above this room alone
        return import_module("windlass.training.tpu_strategy").TPUStrategy
    raise missing_name(
        "windlass.distribute", name, (*__all__, "Server", "ServerDef", "TPUStrategy")
    )
