"""For training programs: reporting progress, and evaluating checkpoints beside the job."""

from .evaluations import read_evaluations
from .evaluator import SidecarEvaluator
from .progress import is_evaluator, report, task_type

__all__ = ["SidecarEvaluator", "is_evaluator", "read_evaluations", "report", "task_type"]
