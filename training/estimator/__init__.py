"""``wl.estimator``: Estimators, for programs of ``tf.estimator``, which TensorFlow 2.16 removed.

::

    estimator = wl.estimator.Estimator(model_fn, model_dir="digits", config=config)
    train_spec = wl.estimator.TrainSpec(train_input_fn, max_steps=1000)
    eval_spec = wl.estimator.EvalSpec(eval_input_fn, throttle_secs=60)
    wl.estimator.train_and_evaluate(estimator, train_spec, eval_spec)

docs/estimator.md moves a program step by step.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...core.errors import NanLossDuringTrainingError
from . import early_stopping as experimental
from . import metrics
from .basic_hooks import (
    LoggingTensorHook,
    NanTensorHook,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from .building import get_global_step, once
from .elsewhere import ELSEWHERE, attribute_error
from .estimator import Estimator
from .evaluation_results import read_eval_metrics
from .exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from .exporting import ServingInputReceiver, build_raw_serving_input_receiver_fn
from .extending import add_metrics
from .first_values import WarmStartSettings
from .hooks import (
    CheckpointSaverListener,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from .inputs import numpy_input_fn
from .modes import ModeKeys
from .rarer_hooks import FinalOpsHook, ProfilerHook
from .recording import record
from .run_config import DistributeConfig, RunConfig
from .saver_hook import CheckpointSaverHook
from .spec import EstimatorSpec, Scaffold
from .specs import EvalSpec, TrainSpec
from .timers import SecondOrStepTimer
from .training_and_evaluation import train_and_evaluate

if TYPE_CHECKING:
    from .keras_estimator import model_to_estimator as model_to_estimator

__all__ = [
    "BestExporter", "CheckpointSaverHook", "CheckpointSaverListener", "DistributeConfig",
    "Estimator", "EstimatorSpec", "EvalSpec", "Exporter", "FinalExporter", "FinalOpsHook",
    "LatestExporter", "LoggingTensorHook", "ModeKeys", "NanLossDuringTrainingError",
    "NanTensorHook", "ProfilerHook", "RunConfig", "Scaffold", "SecondOrStepTimer",
    "ServingInputReceiver", "SessionRunArgs", "SessionRunContext", "SessionRunHook",
    "SessionRunValues", "StepCounterHook", "StopAtStepHook", "SummarySaverHook", "TrainSpec",
    "WarmStartSettings", "add_metrics", "build_raw_serving_input_receiver_fn", "experimental",
    "get_global_step", "metrics", "numpy_input_fn", "once", "read_eval_metrics", "record",
    "train_and_evaluate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Not in `__all__`: it needs Keras.
    if name == "model_to_estimator":
        return import_module(".keras_estimator", __name__).model_to_estimator
    raise attribute_error("wl.estimator", name, ELSEWHERE, __all__)
