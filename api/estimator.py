"""``rw.estimator``: Estimators, for programs of ``tf.estimator``, which TensorFlow 2.16 removed.

::

    estimator = rw.estimator.Estimator(model_fn, model_dir="digits", config=config)
    train_spec = rw.estimator.TrainSpec(train_input_fn, max_steps=1000)
    eval_spec = rw.estimator.EvalSpec(eval_input_fn, throttle_secs=60)
    rw.estimator.train_and_evaluate(estimator, train_spec, eval_spec)

docs/estimator.md moves a program step by step.
"""

from typing import TYPE_CHECKING

from ..annexes.estimator import early_stopping as experimental
from ..annexes.estimator import metrics
from ..annexes.estimator.basic_hooks import (
    FinalOpsHook,
    LoggingTensorHook,
    NanTensorHook,
    ProfilerHook,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from ..annexes.estimator.building import get_global_step, once
from ..annexes.estimator.estimator import Estimator, add_metrics
from ..annexes.estimator.evaluating import read_eval_metrics
from ..annexes.estimator.exporters import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
    ServingInputReceiver,
    build_raw_serving_input_receiver_fn,
)
from ..annexes.estimator.first_values import WarmStartSettings
from ..annexes.estimator.hooks import (
    CheckpointSaverListener,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from ..annexes.estimator.inputs import ELSEWHERE, numpy_input_fn
from ..annexes.estimator.recording import record
from ..annexes.estimator.run_config import DistributeConfig, RunConfig
from ..annexes.estimator.saving import CheckpointSaverHook
from ..annexes.estimator.spec import EstimatorSpec, ModeKeys, Scaffold
from ..annexes.estimator.training_and_evaluation import EvalSpec, TrainSpec, train_and_evaluate
from ..core.errors import NanLossDuringTrainingError
from ..core.public_face import public_getattr

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

if TYPE_CHECKING:
    from ..annexes.estimator.keras_estimator import model_to_estimator

    __all__ += ["model_to_estimator"]
else:
    __getattr__ = public_getattr(
        "rw.estimator",
        globals(),
        # Not in `__all__`: it needs Keras.
        later={"model_to_estimator": "annexes.estimator.keras_estimator:model_to_estimator"},
        instead=ELSEWHERE,
    )
