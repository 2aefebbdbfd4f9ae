"""The programming model: strategies, variables, contexts, values, reductions, input.

As ``ropewalk.distribute`` it has the names that ``api/distribute.py`` lists.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..api.distribute import *  # noqa: F403
else:
    from ..core.public_face import shown

    __getattr__, __dir__ = shown(__name__, globals())
