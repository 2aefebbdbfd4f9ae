"""Support for training programs: progress, evaluation beside the job, and bridges to frameworks.

As ``ropewalk.training`` it has the names that ``api/training.py`` lists. No module is called as a
framework is.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..api.training import *  # noqa: F403
else:
    from ..core.public_face import shown

    __getattr__, __dir__ = shown(__name__, globals())
