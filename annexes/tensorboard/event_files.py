"""Event files for those that do not know who writes them: evaluators and Estimators."""

from .encoding import require_library
from .folders import EVALUATOR_RUN, run_folder
from .writer import EventWriter

__all__ = ["EVALUATOR_RUN", "EventWriter", "require_library", "run_folder"]
