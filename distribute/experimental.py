"""``ropewalk.distribute.experimental``: the names that ``api/experimental.py`` lists."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..api.experimental import *  # noqa: F403
else:
    from ..core.public_face import shown

    __getattr__, __dir__ = shown(__name__, globals())
