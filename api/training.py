"""``ropewalk.training``: progress, evaluation beside the job, and bridges to frameworks."""

from typing import TYPE_CHECKING

from ..core.public_face import public_getattr
from ..training.evaluations import read_evaluations
from ..training.evaluator import SidecarEvaluator
from ..training.progress import is_evaluator, report, step_times, task_type

__all__ = [
    "ArrayStore",
    "ModelStep",
    "SidecarEvaluator",
    "export",
    "is_evaluator",
    "read_evaluations",
    "report",
    "save",
    "step_times",
    "task_type",
]

if TYPE_CHECKING:
    from ..annexes import jax_bridge as jax
    from ..annexes import keras_bridge as keras
    from ..annexes import torch_bridge as torch
    from ..training.array_store import ArrayStore, ModelStep
    from ..training.exporting import export
    from ..training.saving import save

    __all__ += ["jax", "keras", "torch"]
else:
    # The bridges are not in `__all__`, since `import *` would load every framework, and fail
    # without one.
    __getattr__ = public_getattr(
        "ropewalk.training",
        globals(),
        later={
            "ArrayStore": "training.array_store:ArrayStore",
            "ModelStep": "training.array_store:ModelStep",
            "export": "training.exporting:export",
            "jax": "annexes.jax_bridge",
            "keras": "annexes.keras_bridge",
            "save": "training.saving:save",
            "torch": "annexes.torch_bridge",
        },
    )
