"""The coordinator of TensorFlow 2's parameter-server training: one program, and workers that run
what it schedules. As ``ropewalk.distribute.coordinator`` it has the names that
``api/coordinator.py`` lists.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...api.coordinator import *  # noqa: F403
else:
    from ...core.public_face import shown

    __getattr__, __dir__ = shown(__name__, globals())
