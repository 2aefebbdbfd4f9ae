"""Ropewalk: parameter-server training with the programming model of tf.distribute.

::

    import ropewalk as rw

    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        w = rw.Variable(np.zeros((64, 10), np.float32), name="w")
    optimizer = rw.optimizers.Adam(1e-3)

Everything below is loaded when it is first used, so that ``import ropewalk`` costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

from .core import public_face
from .core.process.frameworks import call_on_import

if TYPE_CHECKING:
    from . import distribute, testing, training
    from .annexes import estimator
    from .annexes.service.connecting import connect
    from .annexes.tensorboard import summary
    from .api import config, data, embedding, train
    from .cluster.spec import ClusterSpec
    from .core import errors
    from .core.arrays.indexed_slices import IndexedSlices
    from .core.rules.initializers import Initializer
    from .distribute import metrics, nn, optimizers, random
    from .distribute.base.devices import on_device as device
    from .distribute.base.reductions import VariableAggregation, VariableSynchronization
    from .distribute.checkpoint import Checkpoint
    from .distribute.variables.variable import Variable, variable_creator_scope

__all__ = [
    "Checkpoint",
    "ClusterSpec",
    "IndexedSlices",
    "Initializer",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "config",
    "connect",
    "data",
    "device",
    "distribute",
    "embedding",
    "errors",
    "estimator",
    "metrics",
    "nn",
    "optimizers",
    "random",
    "summary",
    "testing",
    "train",
    "training",
    "variable_creator_scope",
]

# The place of each name, loaded when it is first used.
_name = public_face.public_getattr(
    "ropewalk",
    globals(),
    later={
        "Checkpoint": "distribute.checkpoint:Checkpoint",
        "ClusterSpec": "cluster.spec:ClusterSpec",
        "IndexedSlices": "core.arrays.indexed_slices:IndexedSlices",
        "Initializer": "core.rules.initializers:Initializer",
        "Variable": "distribute.variables.variable:Variable",
        "VariableAggregation": "distribute.base.reductions:VariableAggregation",
        "VariableSynchronization": "distribute.base.reductions:VariableSynchronization",
        "config": "api.config",
        "connect": "annexes.service.connecting:connect",
        "data": "distribute.data",
        "device": "distribute.base.devices:on_device",
        "distribute": "distribute",
        "embedding": "annexes.embedding",
        "errors": "core.errors",
        "estimator": "annexes.estimator",
        "metrics": "distribute.metrics",
        "nn": "distribute.nn",
        "optimizers": "distribute.optimizers",
        "random": "distribute.random",
        "summary": "annexes.tensorboard.summary",
        "testing": "testing",
        "train": "api.train",
        "training": "training",
        "variable_creator_scope": "distribute.variables.variable:variable_creator_scope",
    },
)

# Packages and modules of rooms that programs import by name, each with the module that lists its
# public names.
public_face.show(
    {
        "distribute": "api.distribute",
        "distribute.cluster_resolver": "api.cluster_resolver",
        "distribute.coordinator": "api.coordinator",
        "distribute.data": "api.data",
        "distribute.experimental": "api.experimental",
        "training": "api.training",
        "annexes.embedding": "api.embedding",
        "annexes.estimator": "api.estimator",
    }
)


def _default_strategy() -> Any:
    from .distribute.strategies.default import the_default_strategy

    return the_default_strategy()


def _instead(module: str) -> Any:
    from .api.instead import INSTEAD

    return INSTEAD.get(module, {})


def _join_cluster(*arguments: Any, **options: Any) -> Any:
    from .worker.plain_program import join

    return join(*arguments, **options)


def _require_annex(annex: str, use: str) -> None:
    from .core import annexes

    annexes.require(annex, use)


def _follow_keras() -> None:
    from .core import annexes

    if "keras_bridge" in annexes.installed():
        from .annexes.keras_bridge.scoping import follow_scopes

        follow_scopes()


def _follow_torch() -> None:
    from .training.unshared_steps import follow_torch

    follow_torch()


def _follow_optax() -> None:
    from .training.unshared_steps import follow_optax

    follow_optax()


public_face.provide("instead", _instead)
public_face.provide("default_strategy", _default_strategy)
public_face.provide("join_cluster", _join_cluster)
public_face.provide("require_annex", _require_annex)
# Models of Keras that are made in a strategy's scope belong to it; of other frameworks it is noted
# whether an optimizer makes steps that no strategy shares.
call_on_import("keras", _follow_keras)
call_on_import("torch", _follow_torch)
call_on_import("optax", _follow_optax)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .core.versions import own_versions

        return own_versions().ropewalk
    return _name(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
