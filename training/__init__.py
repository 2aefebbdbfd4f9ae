"""What people call to train: reporting progress, following checkpoints with an evaluator."""

from .evaluations import read_evaluations
from .evaluator import SidecarEvaluator
from .progress import is_evaluator, report, task_type

__all__ = ["SidecarEvaluator", "is_evaluator", "read_evaluations", "report", "task_type"]
