"""For training programs: progress, evaluation beside the job, and bridges to frameworks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.public_names import missing_name
from .evaluations import read_evaluations
from .evaluator import SidecarEvaluator
from .progress import is_evaluator, report, task_type

if TYPE_CHECKING:
    from . import jax_bridge as jax  # noqa: F401
    from . import keras_bridge as keras  # noqa: F401
    from . import torch_bridge as torch  # noqa: F401
    from .array_store import ArrayStore
    from .exporting import export
    from .saving import save

__all__ = [
    "ArrayStore",
    "SidecarEvaluator",
    "export",
    "is_evaluator",
    "read_evaluations",
    "report",
    "save",
    "task_type",
]

# Loaded when they are first used. No module is called as a framework is. They are not in `__all__`,
# since `import *` would load every framework, and fail without one.
_LAZY = {"ArrayStore": "array_store", "export": "exporting", "save": "saving"}
_BRIDGES = {"jax": "jax_bridge", "keras": "keras_bridge", "torch": "torch_bridge"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    if name in _BRIDGES:
        return import_module(f".{_BRIDGES[name]}", __name__)
    raise missing_name("windlass.training", name, (*__all__, *_BRIDGES))
