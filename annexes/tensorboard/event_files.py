"""Event files for those that do not know who writes them: evaluators and Estimators."""

from .encoding import require_library
from .writer import EVALUATOR_RUN, EventWriter, run_folder

__all__ = ["EVALUATOR_RUN", "EventWriter", "require_library", "run_folder"]
