"""Event files for Estimators, which do not know who writes them."""

from .encoding import require_library
from .writer import EventWriter

__all__ = ["EventWriter", "require_library"]
