"""The programming model: strategies, variables, contexts, values, reductions, input.

Names, signatures and semantics are those of ``tf.distribute``, without TensorFlow.
"""

from ..cluster import partitioners, placement
from ..core.wire_format import WireFormat
from . import cluster_resolver
from .context import (
    ReplicaContext,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from .input import DistributedDataset, DistributedIterator, from_arrays
from .parameter_server import ParameterServerStrategy
from .reduce_op import ReduceOp
from .strategy import Strategy, StrategyExtended
from .values import DistributedValues, Mirrored, PerReplica

__all__ = [
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "Mirrored",
    "ParameterServerStrategy",
    "PerReplica",
    "ReduceOp",
    "ReplicaContext",
    "Strategy",
    "StrategyExtended",
    "WireFormat",
    "cluster_resolver",
    "experimental_set_strategy",
    "from_arrays",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "partitioners",
    "placement",
]
