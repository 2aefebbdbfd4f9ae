"""Windlass: parameter-server training with the programming model of tf.distribute.

::

    import windlass as wl

    strategy = wl.distribute.ParameterServerStrategy()
    with strategy.scope():
        w = wl.Variable(np.zeros((64, 10), np.float32), name="w")
    optimizer = wl.optimizers.Adam(1e-3)

Everything below is loaded when it is first used, so that ``import windlass`` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core import on_import

if TYPE_CHECKING:
    from . import distribute, testing, training
    from .cluster.spec import ClusterSpec
    from .core import errors
    from .core.indexed_slices import IndexedSlices
    from .core.initializers import Initializer
    from .distribute import config, data, metrics, nn, optimizers, random, train
    from .distribute.base.devices import on_device as device
    from .distribute.base.reductions import VariableAggregation, VariableSynchronization
    from .distribute.checkpoint import Checkpoint
    from .distribute.variables.variable import Variable, variable_creator_scope
    from .training import estimator, summary
    from .worker.connecting import connect

# Public name → where it is. A module is given by its path, anything else by path and attribute.
_WHERE = {
    "Checkpoint": ("distribute.checkpoint", "Checkpoint"),
    "ClusterSpec": ("cluster.spec", "ClusterSpec"),
    "IndexedSlices": ("core.indexed_slices", "IndexedSlices"),
    "Initializer": ("core.initializers", "Initializer"),
    "Variable": ("distribute.variables.variable", "Variable"),
    "VariableAggregation": ("distribute.base.reductions", "VariableAggregation"),
    "VariableSynchronization": ("distribute.base.reductions", "VariableSynchronization"),
    "config": ("distribute.config", None),
    "connect": ("worker.connecting", "connect"),
    "data": ("distribute.data", None),
    "device": ("distribute.base.devices", "on_device"),
    "distribute": ("distribute", None),
    "errors": ("core.errors", None),
    "estimator": ("training.estimator", None),
    "metrics": ("distribute.metrics", None),
    "nn": ("distribute.nn", None),
    "optimizers": ("distribute.optimizers", None),
    "random": ("distribute.random", None),
    "summary": ("training.summary", None),
    "testing": ("testing", None),
    "train": ("distribute.train", None),
    "training": ("training", None),
    "variable_creator_scope": ("distribute.variables.variable", "variable_creator_scope"),
}

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


# Models of Keras that are made in a strategy's scope belong to it; of other frameworks it is noted
# whether an optimizer makes steps that nobody hears of.
on_import.register(
    "keras", lambda: import_module(".training.keras_bridge.scoping", __name__).follow_scopes()
)
on_import.register(
    "torch", lambda: import_module(".training.unshared_steps", __name__).follow_torch()
)
on_import.register(
    "optax", lambda: import_module(".training.unshared_steps", __name__).follow_optax()
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .core.versions import own_versions

        return own_versions().windlass
    if name not in _WHERE:
        from .core.public_names import missing_name

        raise missing_name("windlass", name, __all__)
    path, attribute = _WHERE[name]
    module = import_module(f".{path}", __name__)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
